"""Requests that are refused, and the sentence with the reason."""

from collections.abc import Mapping

from persia_cli.errors import PersiaError

MAX_TEXT = 1000
"""Maximum number of characters of a sentence; it may quote the request."""
CLOSE = {"connection": "close"}
"""Header of an answer after which the connection is closed."""


class RefusedRequestError(PersiaError):
    """A request that gets no predictions; `status` is HTTP's."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}...")
        self.status = status
        self.headers = dict(headers or {})


class DisconnectedError(PersiaError):
    """A client that left before its request was complete; no answer is sent."""


def bad(text: str) -> RefusedRequestError:
    """Return the refusal of an invalid body."""
    return RefusedRequestError(400, text)


def busy(text: str) -> RefusedRequestError:
    """Return the refusal of a request because the server is busy."""
    return RefusedRequestError(503, text, {"retry-after": "1"})

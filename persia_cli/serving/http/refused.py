"""Requests that are refused, and the sentence that says why."""

from collections.abc import Mapping

from persia_cli.errors import PersiaError

MOST_TEXT = 1000
"""Characters of a sentence; it may quote what came."""


class RefusedRequestError(PersiaError):
    """A request that gets no predictions; `status` is HTTP's."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}...")
        self.status = status
        self.headers = dict(headers or {})


class DisconnectedError(PersiaError):
    """A client that left before its request was whole; nobody gets the answer."""


def bad(text: str) -> RefusedRequestError:
    """Return the refusal of a body that cannot be used."""
    return RefusedRequestError(400, text)


def busy(text: str) -> RefusedRequestError:
    """Return the refusal of a request that the server has no time for now."""
    return RefusedRequestError(503, text, {"retry-after": "1"})

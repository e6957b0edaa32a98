"""Requests that are answered without a task of their own.

What ASGI makes of a request costs more than reading it: a task, an event, a timer for its deadline, two messages for
its answer. Predictions that are asked for in the plain form, as nearly all are, go without.
"""

import time
from collections.abc import Callable, Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from persia_cli.server.answers import HttpAnswer, header_pairs
from persia_cli.serving.predictor import Predictor

SMALL = 2**16
"""Bytes of a body that the connection may bring even if its request is refused, so that it can be used again; a larger
one has its time limit and its bounds from the application."""
SPECIAL = frozenset({b"expect", b"content-encoding", b"transfer-encoding"})
"""Headers of requests that the application answers."""


Work = Callable[[Predictor, bytes, dict[bytes, bytes]], HttpAnswer]
Send = Callable[["DirectRequest", HttpAnswer], None]


class _NobodyWaits:
    """In place of the event that wakes a task."""

    def set(self) -> None:
        """Wake nobody."""


class DirectRequest:
    """A request, and the name of its route; where uvicorn looks for a request and its response, it finds this."""

    __slots__ = (
        "begin", "body", "disconnected", "headers", "is_whole", "keep_alive", "more_body", "name", "response_complete",
        "send", "work",
    )  # fmt: skip
    message_event = _NobodyWaits()

    def __init__(self, name: str, work: Work, headers: dict[bytes, bytes], keep_alive: bool, send: Send) -> None:
        """`work` makes the answer of the body and the headers, by a predictor."""
        self.name, self.work, self.send = name, work, send
        self.headers, self.keep_alive = headers, keep_alive
        self.begin = time.monotonic()
        self.body = b""
        self.more_body = True
        self.is_whole = False
        """Whether it waits for its turn, or had it."""
        self.response_complete = self.disconnected = False


def is_plain(headers: dict[bytes, bytes], most: int) -> bool:
    """Return whether a request tells the length of its body, which is not too large, and wants nothing special."""
    told = headers.get(b"content-length", b"")
    return told.isdigit() and int(told) <= min(most, SMALL) and SPECIAL.isdisjoint(headers)


def in_bytes(answer: HttpAnswer, stays: bool, more: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return an answer as it is sent, with `more` headers; `stays` says whether the connection is kept."""
    lines = [b"%s: %s\r\n" % pair for pair in (*more, *header_pairs(answer))]
    if not stays and "connection" not in answer.headers:
        lines.append(b"connection: close\r\n")
    return b"".join([STATUS_LINE[answer.status], *lines, b"\r\n", answer.body])

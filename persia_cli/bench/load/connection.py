"""A connection to a server, which is kept for many requests, one at a time."""

import json
import select
import socket
from typing import NamedTuple

import httptools

from persia_cli.bench.load.order import SentRequest
from persia_cli.errors import WireError

CHUNK = 2**18
IDLE_S = 1.0
"""Seconds without a request after which a server may have closed a connection, which is no error then."""
BROKEN = 0
"""Status of a request without an answer: the connection broke."""


class LoadAnswer(NamedTuple):
    """An answer to a request that was due at some moment, by the clock of `perf_counter`."""

    due: float
    status: int
    body: bytes
    request: SentRequest

    @property
    def is_right(self) -> bool:
        """True if it has the predictions of the model."""
        return self.body == self.request.answer

    def sentence(self) -> str:
        """Return the server's sentence of an answer without predictions, or why there is no answer."""
        if self.status == BROKEN:
            return self.body.decode()
        try:
            return f"{self.status}: {json.loads(self.body)['error']}"
        except (ValueError, LookupError, TypeError):
            return f"status {self.status}"


class LoadConnection:
    """Sends requests and reads their answers; the present one was `due`, and `sent`, at these moments."""

    def __init__(self, address: tuple[str, int], patience_s: float) -> None:
        """Connect; raises WireError if the server does not listen."""
        self._address, self._patience_s = address, patience_s
        self.sent = self.due = 0.0
        self._open()

    def fileno(self) -> int:
        """Return the socket's descriptor, by which it can be waited for."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def ask(self, request: SentRequest, due: float, now: float) -> None:
        """Send a request; raises WireError if the server does not read it."""
        if now - self.sent > IDLE_S and self._is_closed():
            self._reopen()
        self._request, self.due, self.sent = request, due, now
        self._parts: list[bytes] = []
        self._is_whole = False
        try:
            self._socket.sendall(request.wire)
        except OSError as error:
            # Perhaps it has answered before the request was whole, and closed; then there is something to read.
            if isinstance(error, TimeoutError):
                raise WireError(f"the server has not read a request for {self._patience_s:g} s") from error

    def read(self) -> LoadAnswer | None:
        """Return the answer if what has come completes it; raises WireError for a lost connection or invalid HTTP."""
        try:
            data, reason = self._socket.recv(CHUNK), "the server closed the connection before it had answered"
        except OSError as error:
            data, reason = b"", f"the connection broke: {error.strerror or error}"
        if not data:
            self._reopen()
            return LoadAnswer(self.due, BROKEN, reason.encode(), self._request)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise WireError(f"the server's answer is no HTTP: {error}") from error
        if not self._is_whole:
            return None
        answer = LoadAnswer(self.due, self._parser.get_status_code(), b"".join(self._parts), self._request)
        if not self._stays:
            self._reopen()
        return answer

    def on_body(self, part: bytes) -> None:
        """Take a part of an answer's body: called by the parser."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Take note of an answer's end: called by the parser."""
        self._is_whole = True
        # The parser forgets it with the next line.
        self._stays = self._parser.should_keep_alive()

    def _is_closed(self) -> bool:
        # Between two requests nothing comes but the end.
        readable, _, _ = select.select((self._socket,), (), (), 0)
        return bool(readable)

    def _reopen(self) -> None:
        self.close()
        self._open()

    def _open(self) -> None:
        try:
            self._socket = socket.create_connection(self._address, self._patience_s)
        except OSError as error:
            raise WireError(f"the server does not take connections: {error.strerror or error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = httptools.HttpResponseParser(self)

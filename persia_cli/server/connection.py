"""A connection to a server: who sends too much, or nothing, or does not read, does not hold it for long."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from persia_cli.server.answers import JSON, HttpAnswer
from persia_cli.server.app import ServingApp
from persia_cli.server.direct import DirectRequest, in_bytes
from persia_cli.server.transport import ReadingInTurn, WholeAnswers

MOST_CONNECTIONS = 900
"""Of a worker; one more is told to come again. Processes may commonly have 1,024 files and connections."""
MOST_HEAD = 2**16
"""Bytes of a request's line and headers, or of what comes between parts of its body and behind it, beside those that
come with the last of them."""
MOST_AHEAD = 1000
"""Requests that wait on a connection for the answer of an earlier one; it is closed behind the last of them."""
HEAD_S = 10.0
"""Seconds within which a connection has to be encrypted, and then the line and headers of a request have to come."""
BEYOND = 64
"""Connections beyond that bound which are told so; yet another one is closed at once."""
BEYOND_S = 1.0
"""Seconds in which the request of such a connection has to begin."""
LINGER_S = 2.0
"""Seconds for which what a client still sends is thrown away behind a last answer; it may read that meanwhile."""
STALL_S = 10.0
"""Seconds for which an answer waits for a client that does not read."""
_REASONS = {
    400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable",
}  # fmt: skip


class BoundedConnection(HttpToolsProtocol):
    """A connection of HTTP/1.1, on which requests may follow each other.

    Those that `serving` takes directly are answered without a task; the others go by ASGI.
    """

    def __init__(
        self, serving: ServingApp | None = None, on_lost: Callable[[], object] = lambda: None, **keys: Any
    ) -> None:
        """`on_lost` is called when the connection has ended."""
        super().__init__(**keys)
        self._serving, self._on_lost = serving, on_lost
        self._in_head = False
        self._has_moved = False
        self._idle_bytes = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._at_work: Any = None
        self._is_beyond = self._is_refused = False
        self._idle_since: float | None = None
        """When the last answer was complete, unless a next request has begun."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = ReadingInTurn(transport, self.pipeline)
        self._own, self._answers = transport, WholeAnswers(transport, self._end)
        self.transport = self._answers  # type: ignore[assignment]
        if len(self.connections) > MOST_CONNECTIONS + BEYOND:
            transport.close()
        elif len(self.connections) > MOST_CONNECTIONS:
            # A client reads no answer before it has sent its request.
            self._is_beyond = True
            self._start("head", BEYOND_S, self._refuse_beyond)
        else:
            self._start("head", HEAD_S, self._on_late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        super()._unset_keepalive_if_required()  # uvicorn keeps it, and all of the connection, where a client resets it
        if self._at_work is not None and not self._at_work.response_complete:
            # uvicorn tells only the last request of a connection.
            self._at_work.disconnected = True
            self._at_work.message_event.set()
        super().connection_lost(exc)
        self._let_go()
        self._on_lost()

    def _let_go(self) -> None:
        """Let go of what refers back to this connection, which else waits for a collection of garbage, with 4 KiB."""
        self.parser = self.cycle = self._at_work = None  # type: ignore[assignment]
        self.pipeline.clear()
        self._answers.let_go()

    def data_received(self, data: bytes) -> None:
        # Other than with uvicorn, what comes does not end the wait for a next request: its beginning does.
        if self.transport.is_closing():  # with TLS there may be more
            return
        if self._is_beyond:
            self._refuse_beyond()
            return
        self._has_moved = False
        try:
            self._parse(memoryview(data))
        except HttpParserError:
            self.send_400_response("")
            self._go_on()
            return
        self._go_on()
        self._idle_bytes = 0 if self._has_moved else self._idle_bytes + len(data)
        if self._in_head and "head" not in self._timers:
            self._start("head", HEAD_S, self._on_late_head)
        if self._idle_bytes > MOST_HEAD:
            what = "the line and the headers of a request" if self._in_head else "trailers and the like"
            self._refuse(431, f"{what} have at most {MOST_HEAD:,} bytes")

    def _parse(self, data: memoryview) -> None:
        """Parse requests, heedless of a wish for another protocol, for which httptools would leave the body.

        Clients of Java, and curl --http2, wish for HTTP/2 and go on by HTTP/1.1 where that is not heeded.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except HttpParserUpgrade as wish:
                if self.parser.get_method() == b"CONNECT":
                    raise HttpParserError("no proxy") from None
                head = self._head_without_upgrade()
                # The parser has done its work if the connection shall close behind this request.
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(head)
                data = data[wish.args[0] :]

    def _head_without_upgrade(self) -> bytes:
        """The head that was just parsed, to be parsed again."""
        first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([first, *lines, b"", b""])

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_AHEAD:
            raise HttpParserError("too many requests ahead")
        super().on_message_begin()
        self._in_head = self._has_moved = True
        self._unset_keepalive_if_required()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # and is no trailer, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the head comes again
        self._in_head, self._has_moved = False, True
        self._stop("head")
        # It began anew where the answer to the request before went out in the midst of this head.
        self._unset_keepalive_if_required()
        if not self._begins_directly():
            super().on_headers_complete()

    def _begins_directly(self) -> bool:
        """Begin a request that needs no task, if it is one and nothing before it is to be sent."""
        serving, before = self._serving, self.cycle
        if serving is None or self.flow.write_paused or (before is not None and not before.response_complete):
            return False
        if self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return False
        stays = self.parser.should_keep_alive()
        request = serving.direct(self.url, dict(self.headers), stays, self._send)
        if request is None:
            return False
        self.cycle = self._at_work = request  # type: ignore[assignment]
        if serving.is_full:
            serving.refuse(request)
        return True

    def _go_on(self) -> None:
        """Have a direct request answered if it is whole, or else wait for the rest of its body."""
        request, serving = self._at_work, self._serving
        if type(request) is not DirectRequest or request.is_whole or request.response_complete or serving is None:
            return
        if not request.more_body:
            request.is_whole = True
            self._stop("body")
            serving.answer(request)
        elif "body" not in self._timers:
            self._start("body", serving.deadline_s, lambda: serving.refuse(request, serving.late_body()))

    def _send(self, request: DirectRequest, answer: HttpAnswer) -> None:
        """Send the answer of a direct request."""
        stays = request.keep_alive and answer.headers.get("connection") != "close"
        self.transport.write(in_bytes(answer, stays, self.server_state.default_headers))
        request.response_complete = True
        if not stays:
            self.transport.close()
        self.on_response_complete()

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._has_moved = True
            super().on_message_complete()
            # uvicorn leaves that of a request which was answered before it was whole.
            self.cycle.more_body = False

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._at_work = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no request of HTTP/1.1")

    def on_response_complete(self) -> None:
        # Other than with uvicorn, not each request begins and ends a timer: that costs more than reading it.
        self._answers.flush()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._start("stall", STALL_S, self.transport.abort)
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._look_later(self.timeout_keep_alive)
        if "head" in self._timers:  # the rest may have waited for this answer
            self._start("head", HEAD_S, self._on_late_head)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("stall", STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.transport.is_closing():  # the rest has to leave too
            self._start("stall", STALL_S, self.transport.abort)
        else:
            self._stop("stall")

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _look_later(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for so long, or look again when it may have been."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:  # the next answer begins the timer
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_later(left)
            return
        super().timeout_keep_alive_handler()
        self._start("stall", STALL_S, self.transport.abort)

    def _on_late_head(self) -> None:
        self._timers.pop("head", None)
        if self.flow.read_paused:  # the rest may have come, and is not read yet
            self._start("head", HEAD_S, self._on_late_head)
        elif self._in_head:
            self._refuse(408, f"the headers of the request were not there within {HEAD_S:g} s; send them faster")
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse_beyond(self) -> None:
        self._refuse(503, f"the server has {MOST_CONNECTIONS} connections already; try again later")

    def _end(self) -> None:
        """Close the connection; of a request that is not whole, the rest is thrown away first, for a while.

        The system resets a connection that is closed before all is read, and the client then loses its answer.
        """
        own, cycle = self._own, self._at_work
        is_whole = not self._is_refused and (cycle is None or not cycle.more_body)
        if is_whole or own.is_closing() or self._answers.is_over or not own.can_write_eof():
            own.close()
            return
        self._answers.is_over = True
        own.write_eof()
        FlowControl.resume_reading(self.flow)
        self._start("linger", LINGER_S, own.abort)

    def _refuse(self, status: int, text: str) -> None:
        """Answer what is no request, and close the connection."""
        if self.transport.is_closing():
            return
        if not self._in_head and self.cycle is not None and self.cycle.response_complete:
            # It has its answer, and another would be taken for that of a next request.
            self.transport.close()
            self._start("stall", STALL_S, self.transport.abort)
            return
        if self.pipeline or (self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)):
            # Earlier requests have no answer yet, and this one would be taken for theirs.
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        self._is_refused = True
        body = msgspec.json.encode({"error": text})
        lines = [
            f"HTTP/1.1 {status} {_REASONS[status]}", f"content-type: {JSON}", f"content-length: {len(body)}",
            *(["retry-after: 1"] if status == 503 else []), "connection: close", "", "",
        ]  # fmt: skip
        self.transport.write("\r\n".join(lines).encode() + body)
        self.transport.close()
        self._start("stall", STALL_S, self.transport.abort)

    def _start(self, name: str, seconds: float, what: Any) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(seconds, what)

    def _stop(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

"""Connections are bounded in number, in the size of a request's head, and in the time that they wait for a client."""

import asyncio
import gc
import json
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from persia_cli.server import connection
from persia_cli.server.answers import HttpAnswer
from persia_cli.server.app import ServingApp
from persia_cli.server.connection import BoundedConnection
from persia_cli.server.direct import DirectRequest
from persia_cli.server.settings import ServerSettings
from persia_cli.server.transport import WholeAnswers
from persia_cli.serving.predictor import Predictor
from tests.conftest import poll_for
from tests.support.small_model import write_small_model

ROWS = b'{"instances": [{"user": 1, "item": "4", "words": ["lamp"], "price": 0.5}]}'
PREDICT = b"POST /v1/models/shop:predict HTTP/1.1\r\nHost: x\r\n"
WHOLE = PREDICT + b"Content-Length: %d\r\n\r\n" % len(ROWS) + ROWS
LARGE = PREDICT + b"Content-Length: %d\r\n\r\n" % 2**24 + b"x" * 2**24
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> ServingApp:
    folder = write_small_model(tmp_path_factory.mktemp("serve") / "shop")
    return ServingApp(Predictor.open(folder), ServerSettings(str(folder)))


@contextmanager
def listening(app: ServingApp, idle_s: int = 5) -> Iterator[tuple[int, ServerState]]:
    """Serve on a loop of a thread; yields the port and what uvicorn knows of connections."""
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False, timeout_keep_alive=idle_s
    )
    config.load()
    state, loop, port = ServerState(), uvloop.new_event_loop(), []

    async def serve() -> None:
        def connect() -> BoundedConnection:
            return BoundedConnection(app, config=config, server_state=state, app_state={})

        async with await loop.create_server(connect, "127.0.0.1", 0) as server:
            port.append(server.sockets[0].getsockname()[1])
            await server.serve_forever()

    async def begin() -> None:
        main.append(asyncio.current_task())
        with pytest.raises(asyncio.CancelledError):
            await serve()
        for each in list(state.connections):
            each.transport.abort()
        while state.connections or state.tasks:
            await asyncio.sleep(0.01)

    main: list[asyncio.Task[None] | None] = []
    thread = threading.Thread(target=lambda: loop.run_until_complete(begin()))
    thread.start()
    try:
        poll_for(lambda: bool(port), 10.0, "the server listens")
        yield port[0], state
    finally:
        assert main[0] is not None
        loop.call_soon_threadsafe(main[0].cancel)
        thread.join(10)
        loop.close()


@pytest.fixture
def port(app: ServingApp) -> Iterator[int]:
    with listening(app) as (number, _):
        yield number


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def answer(port: int, sent: bytes) -> bytes:
    """All that comes back on a connection of its own, until the server closes it."""
    with closing(connected(port)) as own:
        own.sendall(sent)
        return rest_of(own)


def rest_of(own: socket.socket) -> bytes:
    parts = []
    while part := own.recv(65536):
        parts.append(part)
    return b"".join(parts)


def last(sent: bytes) -> bytes:
    """The request, after which the server shall close the connection."""
    return sent.replace(b"Host: x", b"Host: x\r\nConnection: close")


def test_a_connection_that_says_nothing_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    assert answer(port, b"") == b""


@pytest.mark.parametrize("before", [b"", LIVE])
def test_headers_that_do_not_come_in_time_are_told(port: int, monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    """Also those of a connection's second request."""
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    found = answer(port, before + b"POST /v2 HTTP/1.1\r\nX: ")
    assert found.count(b"HTTP/1.1 200") == before.count(b"GET")
    assert b"HTTP/1.1 408 Request Timeout" in found
    assert "not there within 0.1 s" in json.loads(found.rpartition(b"\r\n\r\n")[2])["error"]


def test_a_body_takes_longer_than_headers_may(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    head, body = last(WHOLE)[: -len(ROWS)], ROWS
    with closing(connected(port)) as own:
        own.sendall(head)
        begin = time.monotonic()
        poll_for(lambda: time.monotonic() > begin + 0.2, 5.0, "more time than headers have")
        own.sendall(body)
        assert b"HTTP/1.1 200" in rest_of(own)


@pytest.mark.parametrize("endless", [b"GET /v2?" + b"x" * 2**20, b"GET /v2 HTTP/1.1\r\nX: " + b"y" * 2**20])
def test_a_head_has_a_bound(port: int, endless: bytes) -> None:
    with closing(connected(port)) as own:
        try:
            own.sendall(endless)
        except OSError:
            return  # it was closed meanwhile
        try:
            found = rest_of(own)
        except ConnectionResetError:
            return
        assert b"431 Request Header Fields Too Large" in found


def test_more_connections_than_there_may_be_are_told_to_come_again(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they send: a connection that is closed with something unread is reset, and its answer lost."""
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(connection, "BEYOND_S", 0.1)
    with closing(connected(port)) as one, closing(connected(port)) as two:
        for each in (one, two):  # which are so known to be there
            each.sendall(LIVE)
            assert each.recv(1000).startswith(b"HTTP/1.1 200")
        for sent in (b"", WHOLE, LARGE):
            found = answer(port, sent)
            assert found.startswith(b"HTTP/1.1 503"), sent[:80]
            assert b"retry-after: 1" in found
            assert "2 connections already" in json.loads(found.rpartition(b"\r\n\r\n")[2])["error"]
    poll_for(lambda: answer(port, last(LIVE)).startswith(b"HTTP/1.1 200"), 5.0, "there is room again")


def test_still_more_connections_are_closed_at_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 0)
    monkeypatch.setattr(connection, "BEYOND", 0)
    with suppress(ConnectionResetError, BrokenPipeError):
        assert answer(port, LIVE) == b""


@pytest.mark.parametrize(
    "begin", [b"GET /\0", b"POST /nowhere HTTP/1.1\r\nHost: x\r\n", PREDICT], ids=["no", "404", "413"]
)
def test_who_is_refused_reads_why_although_he_still_sends(port: int, begin: bytes) -> None:
    found = answer(port, begin + b"Content-Length: %d\r\n\r\n" % 2**25 + b"x" * 2**25)
    assert found.startswith(b"HTTP/1.1 4")
    assert len(json.loads(found.rpartition(b"\r\n\r\n")[2])["error"]) > 10


def test_a_refused_request_that_came_whole_leaves_nothing_to_wait_for(
    app: ServingApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 60.0)
    full = ServingApp(app._predictor, ServerSettings(app._settings.folder, most_requests=0))
    with listening(full, idle_s=1) as (port, state), closing(connected(port)) as own:
        own.sendall(WHOLE[:-20])
        assert own.recv(10000).startswith(b"HTTP/1.1 503")
        own.sendall(WHOLE[-20:])
        poll_for(lambda: not state.connections, 10.0, "the idle connection is closed")


def test_who_sends_without_end_is_let_go(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    with closing(connected(port)) as own:
        own.sendall(PREDICT + b"Content-Length: %d\r\n\r\n" % 2**40)

        def is_let_go() -> bool:
            try:
                own.sendall(b"x" * 2**16)
            except (ConnectionResetError, BrokenPipeError):
                return True
            return False

        poll_for(is_let_go, 10.0, "the connection is reset")


def test_a_server_without_room_says_so_before_the_body_is_there(app: ServingApp) -> None:
    """The connection goes on with the next request, unless much of this one is still to come."""
    full = ServingApp(app._predictor, ServerSettings(app._settings.folder, most_requests=0))
    with listening(full) as (port, _), closing(connected(port)) as own:
        for begun, rest in ((len(WHOLE) - 20, 20), (len(WHOLE), 0)):
            own.sendall(WHOLE[:begun])
            found = own.recv(10000)
            assert found.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in found
            assert b"connection: close" not in found
            own.sendall(WHOLE[len(WHOLE) - rest :] + LIVE)
            assert own.recv(10000).startswith(b"HTTP/1.1 200")
        own.sendall(PREDICT + b"Content-Length: %d\r\n\r\n" % 2**17)
        found = rest_of(own)
        assert found.startswith(b"HTTP/1.1 503")
        assert b"connection: close" in found


def test_a_body_that_stalls_is_told_and_counted(app: ServingApp) -> None:
    """A request that is answered without a task has its deadline too."""
    hasty = ServingApp(app._predictor, ServerSettings(app._settings.folder, deadline_s=0.1))
    with listening(hasty) as (port, state):
        found = answer(port, WHOLE[:-5])
        assert not state.tasks
    assert found.startswith(b"HTTP/1.1 408")
    assert "was not there within 0.1 s" in json.loads(found.rpartition(b"\r\n\r\n")[2])["error"]
    assert b'persia_requests_total{route="predict",status="408"} 1.0' in hasty.figures.text()


def test_one_who_leaves_before_the_turn_is_not_computed_and_holds_no_place(app: ServingApp) -> None:
    one = ServingApp(app._predictor, ServerSettings(app._settings.folder, most_requests=1))

    def ask(is_gone: bool) -> None:
        request = one.direct(b"/v1/models/shop:predict", {b"content-length": b"%d" % len(ROWS)}, True, sent)
        assert request is not None
        request.body, request.disconnected = ROWS, is_gone
        one.answer(request)

    def sent(request: DirectRequest, answer: HttpAnswer) -> None:
        statuses.append(answer.status)

    async def several() -> None:
        ask(False)
        ask(True)  # which waits
        ask(False)  # and there is room for one
        while one.is_full:
            await asyncio.sleep(0)
        ask(False)

    statuses: list[int] = []
    asyncio.run(several())
    assert statuses == [200, 503, 200]


def test_a_client_that_does_not_read_is_let_go(
    app: ServingApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "STALL_S", 0.2)
    with listening(app) as (port, state), closing(socket.socket()) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.settimeout(10)
        own.connect(("127.0.0.1", port))
        asked = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000
        with suppress(OSError):  # the server may give up before it has read them
            own.sendall(asked)
        poll_for(lambda: state.connections, 5.0, "the server has the connection")
        poll_for(lambda: not state.connections, 10.0, "the server gives up, as its answers do not leave it")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_requests_that_follow_each_other_are_answered_in_order(port: int) -> None:
    found = answer(port, WHOLE + LIVE + last(WHOLE))
    places = [found.find(word) for word in (b"predictions", b'"live"')] + [found.rfind(b"predictions")]
    assert found.count(b"HTTP/1.1 200") == 3
    assert places == sorted(places)
    assert places[0] != places[2]


def test_an_answer_is_never_that_of_a_broken_request_behind_it(port: int) -> None:
    found = answer(port, WHOLE + b"\x00\x01 nonsense\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200")
    assert b"predictions" in found


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /v2/\xff HTTP/1.1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[::x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        PREDICT + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\n{}",
        PREDICT + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        PREDICT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        PREDICT + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}",
        PREDICT + b"Connection: close\r\n\r\n",
        b"BREW /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_no_good_request_gets_a_sentence(port: int, sent: bytes) -> None:
    found = answer(port, sent)
    assert found.startswith(b"HTTP/1.1 4"), found
    assert len(json.loads(found.partition(b"\r\n\r\n")[2])["error"]) > 10


def test_bodies_in_chunks_and_those_that_ask_first(port: int) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (ROWS[:7], ROWS[7:50], ROWS[50:]))
    found = answer(port, last(PREDICT) + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert b"predictions" in found
    with closing(connected(port)) as own:
        own.sendall(last(PREDICT) + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(ROWS))
        assert own.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        own.sendall(ROWS)
        assert b"predictions" in rest_of(own)


def test_a_head_request_has_no_body_and_an_upgrade_is_not_made(port: int) -> None:
    head, _, body = answer(port, last(LIVE).replace(b"GET", b"HEAD")).partition(b"\r\n\r\n")
    assert b"content-length: 13" in head
    assert body == b""
    wish = b"Upgrade: h2c\r\nConnection: Upgrade, close\r\nHTTP2-Settings: AAMAAABk\r\n"
    found = answer(port, PREDICT + wish + b"Content-Length: %d\r\n\r\n" % len(ROWS) + ROWS)
    assert found.startswith(b"HTTP/1.1 200")
    assert b"predictions" in found


WISH = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n"
WISHING = WHOLE.replace(PREDICT, PREDICT + WISH)


@pytest.mark.parametrize("at", [20, 60, 90, len(WISHING) - len(ROWS) - 1, len(WISHING) - 3])
def test_an_upgrade_is_not_made_however_the_request_comes(port: int, at: int) -> None:
    """In two parts, behind another request, and before another."""
    with closing(connected(port)) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.sendall(WHOLE + WISHING[:at])
        assert b"predictions" in own.recv(65536)  # the server has read so far
        own.sendall(WISHING[at:] + WISHING + last(WHOLE))
        found = rest_of(own)
    assert found.count(b"HTTP/1.1 200") == found.count(b"predictions") == 3


def test_trailers_and_extensions_of_chunks_have_a_bound(port: int) -> None:
    """Also behind the answer, where no second one comes."""
    chunked = LIVE.replace(b"Host: x", b"Host: x\r\nTransfer-Encoding: chunked")
    for endless in (b"0\r\n" + b"a: xxxxxxxx\r\n" * 2**18, b"0\r\na: " + b"x" * 2**22, b"2;x=" + b"y" * 2**22):
        with closing(connected(port)) as own:
            own.sendall(chunked)
            assert own.recv(1000).startswith(b"HTTP/1.1 200")
            with suppress(ConnectionError):
                own.sendall(endless)
                assert rest_of(own) == b""
    small = b"2\r\n{}\r\n0\r\nchecksum: 7\r\n\r\n"
    assert answer(port, chunked + small + last(LIVE)).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("drip", [b"x", b"\r\n"])
def test_what_drips_behind_an_answer_does_not_hold_the_connection(app: ServingApp, drip: bytes) -> None:
    """Be it the body of the request that has its answer, or nothing."""
    body = b"Content-Length: 100000\r\n" if drip == b"x" else b""
    with listening(app, idle_s=1) as (port, state), closing(connected(port)) as own:
        own.sendall(LIVE.replace(b"Host: x\r\n", b"Host: x\r\n" + body))
        assert own.recv(1000).startswith(b"HTTP/1.1 200")

        def is_closed() -> bool:
            with suppress(OSError):
                own.sendall(drip)
            return not state.connections

        poll_for(is_closed, 5.0, "the server closes the connection")


def test_a_connection_whose_answered_request_ends_late_is_good_for_the_next(app: ServingApp) -> None:
    with listening(app, idle_s=1) as (port, state), closing(connected(port)) as own:
        own.sendall(LIVE.replace(b"Host: x", b"Host: x\r\nContent-Length: 2"))
        assert own.recv(1000).startswith(b"HTTP/1.1 200")
        own.sendall(b"{}" + WHOLE)
        assert b"predictions" in own.recv(65536)
        poll_for(lambda: not state.connections, 5.0, "the connection is closed, as nothing comes")


def test_a_connection_is_closed_so_long_after_its_last_answer(app: ServingApp) -> None:
    """Not after its first one, when the server looks."""
    with listening(app, idle_s=1) as (port, state), closing(connected(port)) as own:
        for wait_s in (0.0, 0.6):
            begin = time.monotonic()
            poll_for(lambda: time.monotonic() >= begin + wait_s, 5.0, "the next request is due")  # noqa: B023
            own.sendall(LIVE)
            assert own.recv(1000).startswith(b"HTTP/1.1 200")
        begin = time.monotonic()
        assert own.recv(1) == b""
        assert 0.9 < time.monotonic() - begin < 5.0
        poll_for(lambda: not state.connections, 5.0, "the server forgets the connection")


def test_a_connection_that_its_client_resets_is_kept_by_no_timer(app: ServingApp) -> None:
    with listening(app) as (port, state), closing(connected(port)) as own:
        own.sendall(LIVE)
        assert own.recv(1000).startswith(b"HTTP/1.1 200")
        (met,) = state.connections
        assert isinstance(met, BoundedConnection)
        poll_for(lambda: met.timeout_keep_alive_task is not None, 5.0, "the server waits for a next request")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        own.close()
        poll_for(lambda: not state.connections, 5.0, "the server sees the reset")
        poll_for(lambda: met.timeout_keep_alive_task is None, 1.0, "nothing waits any more")


@pytest.mark.parametrize(
    ("sent", "is_answered"),
    [
        (LIVE, True), (WHOLE, True), (WHOLE + LIVE + WHOLE, True), (b"no request\r\n\r\n", True), (last(WHOLE), True),
        (last(LIVE), True), (LIVE.replace(b"Host", b"Upgrade: h2c\r\nConnection: upgrade\r\nHost"), True),
        (b"", False), (WHOLE[:-5], False), (LIVE[:9], False), (LARGE[:5000], False), (100 * LIVE, False),
    ],
)  # fmt: skip
def test_the_memory_of_a_connection_that_has_ended_is_free_at_once(
    app: ServingApp, sent: bytes, is_answered: bool
) -> None:
    """Garbage is collected seldom: with many short connections a server would grow by tens of MiB until then."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with listening(app) as (port, state):
            with closing(connected(port)) as own:
                poll_for(lambda: bool(state.connections), 5.0, "the connection is there")
                kept = [weakref.ref(each) for each in state.connections]
                own.sendall(sent)
                if is_answered:
                    own.recv(2**16)
            poll_for(lambda: not state.connections and not state.tasks, 5.0, "the connection has ended")
            poll_for(lambda: not any(each() for each in kept), 5.0, "nothing refers to it")
    finally:
        if collects:
            gc.enable()


@pytest.mark.parametrize("is_closing", [True, False])
def test_the_end_of_an_answer_may_not_stall_either(monkeypatch: pytest.MonkeyPatch, is_closing: bool) -> None:
    """Although its beginning was taken; a connection that stays may wait."""
    monkeypatch.setattr(connection, "STALL_S", 0.05)

    async def is_let_go() -> bool:
        config = uvicorn.Config(lambda: None, http="httptools", ws="none", lifespan="off", log_config=None)
        config.load()
        own = BoundedConnection(config=config, server_state=ServerState(), app_state={})
        transport = Mock()
        transport.is_closing.return_value = is_closing
        own.connection_made(transport)
        own.pause_writing()
        own.resume_writing()
        end = time.monotonic() + (5.0 if is_closing else 0.2)
        while not transport.abort.called and time.monotonic() < end:
            await asyncio.sleep(0.01)
        own.connection_lost(None)
        return bool(transport.abort.called)

    assert asyncio.run(is_let_go()) == is_closing


def test_the_end_of_a_connection_is_told() -> None:
    told: list[str] = []

    async def end() -> None:
        config = uvicorn.Config(lambda: None, http="httptools", ws="none", lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        own = BoundedConnection(
            None, lambda: told.append(f"{len(state.connections)} left"), config=config, server_state=state, app_state={}
        )
        own.connection_made(Mock())
        own.connection_lost(None)

    asyncio.run(end())
    assert told == ["0 left"]


def test_requests_wait_for_their_turn_unread(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(port, LIVE * 900 + last(WHOLE))
    assert found.count(b"HTTP/1.1 200") == 901
    monkeypatch.setattr(connection, "MOST_AHEAD", 10)
    found = answer(port, LIVE * 100)
    assert found.count(b"HTTP/1.1 200") == 11
    assert found.count(b"connection: close") == 1


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.parts.append(data)

    def close(self) -> None:
        self.is_closed = True


def test_an_answer_is_one_write_and_the_wish_for_a_body_waits_for_nothing() -> None:
    written = Written()
    answers = WholeAnswers(written, written.close)  # type: ignore[arg-type]
    answers.write(b"HTTP/1.1 200 OK\r\n\r\n")
    assert written.parts == []
    answers.write(b"HTTP/1.1 is in this body too")
    answers.write(b"and here is more of it")
    assert written.parts == [b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 is in this body too", b"and here is more of it"]
    written.parts.clear()
    answers.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert written.parts == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    for end in (answers.flush, answers.close):
        written.parts.clear()
        answers.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        end()
        end()
        assert written.parts == [b"HTTP/1.1 204 No Content\r\n\r\n"]
    assert written.is_closed


def test_a_file_of_figures_that_a_worker_has_not_begun_does_not_hide_the_others(tmp_path: Path) -> None:
    from prometheus_client.mmap_dict import MmapedDict, mmap_key

    from persia_cli.server.figures import LOGGED, LogFigures, log_figures

    file = MmapedDict(str(tmp_path / "counter_7.db"))
    file.write_value(mmap_key(LOGGED, f"{LOGGED}_total", [], [], "Requests"), 3.0, 0.0)
    file.close()
    (tmp_path / "counter_8.db").touch()
    assert log_figures(str(tmp_path)) == LogFigures(3, 0)

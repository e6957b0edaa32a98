"""Timers, wakers and rounds of the poll loop."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from persia_cli.errors import WireError
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import Message
from persia_cli.wire.messages import Credit, WaitCredit
from persia_cli.wire.sockets import Context

FOREVER_S = 60.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(context: Context) -> Iterator[Loop]:
    made = Loop(context, "role-0")
    yield made
    made.close()


def test_a_server_and_its_client_on_one_loop(loop: Loop) -> None:
    server = loop.serve("inproc://here")
    server.on(WaitCredit, lambda peer, ask: server.reply(peer, Credit(ask.step + 1)))
    client = loop.connect(server.address, "peer", b"me", retry_s=0.5, silence_timeout_s=5.0)
    heard: list[Message] = []
    client.request(WaitCredit(0, 4), on_reply=lambda reply: heard.append(reply))
    deadline = time.monotonic() + 10
    while not heard and time.monotonic() < deadline:
        loop.poll(1.0)
    assert heard == [Credit(5)]


def test_timers_come_at_their_time_and_missed_ones_are_not_made_up_for(context: Context, clock: Clock) -> None:
    loop = Loop(context, "role-0", clock)
    called: list[float] = []
    loop.every(1.0, lambda: called.append(clock.now))
    for clock.now in (100.0, 100.9, 101.0, 101.9, 102.25, 110.0, 110.5, 111.0):
        loop.poll(0.0)
    assert called == [101.0, 102.25, 110.0, 111.0]
    loop.close()


def test_a_round_ends_when_a_timer_is_due(loop: Loop) -> None:
    called = threading.Event()
    loop.waker()
    loop.every(0.05, called.set)
    start = time.monotonic()
    loop.poll(FOREVER_S)
    assert called.is_set()
    assert time.monotonic() - start < FOREVER_S / 2


def test_a_round_ends_when_a_request_is_due(loop: Loop) -> None:
    client = loop.connect("inproc://missing", "peer-0", b"me", retry_s=0.05, silence_timeout_s=0.1)
    client.request(WaitCredit(0, 4), waiting_for="credit")
    start = time.monotonic()
    loop.poll(FOREVER_S)
    with pytest.raises(WireError, match=r"peer-0 at inproc://missing has not answered for 0\.1 s"):
        loop.poll(FOREVER_S)
    assert time.monotonic() - start < FOREVER_S / 2


def test_a_waker_ends_the_wait_from_another_thread(loop: Loop) -> None:
    waker = loop.waker()
    other = threading.Thread(target=waker.wake)
    start = time.monotonic()
    other.start()
    loop.poll(FOREVER_S)
    other.join()
    assert time.monotonic() - start < FOREVER_S / 2


def test_many_wakes_are_one(loop: Loop, clock: Clock) -> None:
    waker = loop.waker()
    for _ in range(1000):
        waker.wake()
    loop.poll(FOREVER_S)
    start = time.monotonic()
    loop.poll(0.05)
    assert time.monotonic() - start >= 0.05


def test_a_wake_after_the_end_touches_no_file(context: Context) -> None:
    loop = Loop(context, "role-0")
    waker = loop.waker()
    loop.close()
    reader, writer = os.pipe()  # takes the number that the waker had
    os.set_blocking(reader, False)
    assert waker.fd in (reader, writer)
    waker.wake()
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    waker.close()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_closed_loop_leaves_nothing_open(context: Context) -> None:
    before = open_files()
    for _ in range(20):
        loop = Loop(context, "role-0")
        loop.serve("tcp://127.0.0.1:0")
        loop.connect("tcp://127.0.0.1:1", "peer", b"me", 0.5, 30.0)
        loop.waker()
        loop.close()
    deadline = time.monotonic() + 10
    while open_files() > before + 10 and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert open_files() <= before + 10

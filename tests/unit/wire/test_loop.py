"""Timers, wakers and rounds of the poll loop."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from persia_cli.wire.loop import Loop
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


def test_a_waker_ends_the_wait_from_another_thread(loop: Loop) -> None:
    waker = loop.waker()
    other = threading.Thread(target=waker.wake)
    start = time.monotonic()
    other.start()
    loop.poll(FOREVER_S)
    other.join()
    assert time.monotonic() - start < FOREVER_S / 2


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

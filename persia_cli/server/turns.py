"""The line in which requests wait for the model, which serves one at a time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from persia_cli.errors import count
from persia_cli.server.refused import RefusedRequestError, busy

T = TypeVar("T")


class Turns:
    """A line of bounded length. Work runs on the event loop, and between two turns the loop reads and writes.

    Each does its work where it writes its answer, a call or the task that waited: so the answer leaves before the next
    turn, which a result that is handed to another task would not.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._line: deque[Callable[[], bool]] = deque()
        """What begins each turn; it returns whether anybody was there to take it."""
        self._is_taken = False

    @property
    def is_full(self) -> bool:
        """Whether one more request would be refused."""
        return self._held >= self._most

    def refusal(self) -> RefusedRequestError:
        """Return what a request is told for which there is no place."""
        return busy(f"the server has {count(self._most, 'request')} at work or waiting already; try again later")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place for a request from its arrival on; raises RefusedRequestError if there is none."""
        if self.is_full:
            raise self.refusal()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def do(self, work: Callable[[], bool]) -> None:
        """Have work done when its turn comes, at once if nobody waits; it returns whether there was any to do."""
        self._held += 1
        self._line.append(partial(self._do, work))
        if not self._is_taken:
            self._is_taken = True
            self._next()

    def _do(self, work: Callable[[], bool]) -> bool:
        self._held -= 1
        is_done = True
        try:
            is_done = work()
        finally:
            if is_done:
                asyncio.get_running_loop().call_soon(self._next)
        return is_done

    async def turn(self, until: float, work: Callable[[], T]) -> T:
        """Return what `work` does when its turn comes; raises RefusedRequestError if that is later than `until`."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            await self._come_up(loop.create_future())
        self._is_taken = True
        try:
            require_time(until)
            return work()
        finally:
            loop.call_soon(self._next)

    async def _come_up(self, turn: "asyncio.Future[None]") -> None:
        self._line.append(partial(_give, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given the turn, and has to hand it on
                self._next()
            raise

    def _next(self) -> None:
        """Give the turn to the next who still waits."""
        while self._line:
            if self._line.popleft()():
                return
        self._is_taken = False


def require_time(until: float) -> None:
    """Raise RefusedRequestError for a request whose deadline is over."""
    if time.monotonic() > until:
        raise busy("the request waited for its turn longer than its deadline; try again later")


def _give(turn: "asyncio.Future[None]") -> bool:
    if turn.done():
        return False
    turn.set_result(None)
    return True

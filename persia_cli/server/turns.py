"""The line in which requests wait for the model, which serves one at a time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

from persia_cli.errors import count
from persia_cli.server.refused import RefusedRequestError, busy

S = TypeVar("S")
T = TypeVar("T")


class Line:
    """Places for requests, from their arrival to their answer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0

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


class Turns(Line, Generic[S]):
    """A line of bounded length. Work runs on the event loop, and between two turns the loop reads and writes.

    Each does its work where it writes its answer, a call or the task that waited: so the answer leaves before the next
    turn, which a result that is handed to another task would not.
    """

    def __init__(self, most: int, tool: S) -> None:
        """`tool` is what work is done with."""
        super().__init__(most)
        self._tool = tool
        self._line: deque[Callable[[], bool]] = deque()
        """What begins each turn; it returns whether anybody was there to take it."""
        self._is_taken = False

    def stuck_s(self) -> float:
        """Return how long the oldest work has been going on: none goes on while the event loop asks."""
        return 0.0

    def do(self, is_wanted: Callable[[], bool], work: Callable[[S], T], deliver: Callable[[T], None]) -> None:
        """Have work done and its result delivered when its turn comes, at once if nobody waits, if it is wanted then.

        `work` raises nothing.
        """
        self._held += 1
        self._line.append(partial(self._do, is_wanted, work, deliver))
        if not self._is_taken:
            self._is_taken = True
            self._next()

    def _do(self, is_wanted: Callable[[], bool], work: Callable[[S], T], deliver: Callable[[T], None]) -> bool:
        self._held -= 1
        if not is_wanted():
            return False
        try:
            deliver(work(self._tool))
        finally:
            asyncio.get_running_loop().call_soon(self._next)
        return True

    async def turn(self, until: float, work: Callable[[S], T]) -> T:
        """Return what `work` does when its turn comes; raises RefusedRequestError if that is later than `until`."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            await self._come_up(loop.create_future())
        self._is_taken = True
        try:
            require_time(until)
            return work(self._tool)
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

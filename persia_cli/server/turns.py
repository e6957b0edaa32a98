"""The line in which requests wait for the model, which serves one at a time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from persia_cli.errors import count
from persia_cli.server.refused import RefusedRequestError, busy

T = TypeVar("T")


class Turns:
    """A line of bounded length. Work runs on the event loop, and between two turns the loop reads and writes.

    Each does its work in the task that waited, and writes its answer there: so the answer leaves before the next turn,
    which a result that is handed to another task would not.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._line: deque[asyncio.Future[None]] = deque()
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

    async def turn(self, until: float, work: Callable[[], T]) -> T:
        """Return what `work` does when its turn comes; raises RefusedRequestError if that is later than `until`."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            await self._come_up(loop.create_future())
        self._is_taken = True
        try:
            if time.monotonic() > until:
                raise busy("the request waited for its turn longer than its deadline; try again later")
            return work()
        finally:
            loop.call_soon(self._next)

    async def _come_up(self, turn: "asyncio.Future[None]") -> None:
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given the turn, and has to hand it on
                self._next()
            raise

    def _next(self) -> None:
        """Give the turn to the next who still waits."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False

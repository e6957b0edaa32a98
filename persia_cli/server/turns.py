"""The line in which requests wait for the model, which serves one at a time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from persia_cli.errors import count
from persia_cli.server.refused import RefusedRequestError, busy

T = TypeVar("T")


class _Waiting(NamedTuple):
    until: float
    work: Callable[[], Any]
    done: "asyncio.Future[Any]"


class Turns:
    """A line of bounded length. Work runs on the event loop, and between two turns the loop reads and writes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._line: deque[_Waiting] = deque()
        self._server: asyncio.Task[None] | None = None

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
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._line.append(_Waiting(until, work, done))
        if self._server is None or self._server.done():
            self._server = asyncio.create_task(self._serve())
        return await done

    async def _serve(self) -> None:
        while self._line:
            until, work, done = self._line.popleft()
            if done.cancelled():
                continue
            if time.monotonic() > until:
                done.set_exception(busy("the request waited for its turn longer than its deadline; try again later"))
            else:
                try:
                    done.set_result(work())
                except Exception as error:
                    done.set_exception(error)
            await asyncio.sleep(0)

"""The queue of requests for the model, which computes one at a time."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from persia_cli.errors import count
from persia_cli.serving.http.refused import RefusedRequestError, busy

T = TypeVar("T")


class Turns:
    """A queue of bounded length. Work runs on the event loop, which sends each answer before the next work begins."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._lock = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """True if one more request would be refused."""
        return self._held >= self._most

    def refusal(self) -> RefusedRequestError:
        """Return the refusal of a request for which there is no place."""
        return busy(f"the server has {count(self._most, 'request')} at work or waiting already; try again later")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Occupy a place for a request from its arrival on; raises RefusedRequestError if there is none."""
        if self.is_full:
            raise self.refusal()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def turn(self, until: float, work: Callable[[], T]) -> T:
        """Return the result of `work` when its turn comes; raises RefusedRequestError if that is later than `until`."""
        await self._lock.acquire()
        try:
            if time.monotonic() > until:
                raise busy("the request waited for its turn longer than its deadline; try again later")
            return work()
        finally:
            # Not at once, since the caller writes its answer, and the event loop sends that first.
            asyncio.get_running_loop().call_soon(self._lock.release)

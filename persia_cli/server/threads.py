"""The line in which requests wait for several threads, each of which computes one at a time."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from persia_cli.server.turns import Line, require_time

S = TypeVar("S")
T = TypeVar("T")


class _Job(NamedTuple):
    """Work that waits for a thread, and what becomes of its result on the event loop."""

    loop: asyncio.AbstractEventLoop
    is_wanted: Callable[[], bool]
    work: Callable[[Any], Any]
    end: Callable[[Any], None]
    """Gets what the work returns, or `_LEFT`."""


_LEFT: Any = object()
"""In place of the result of work that was not wanted any more."""


class ThreadTurns(Line, Generic[S]):
    """A line of bounded length before threads, which take from it in order: who comes meets the first that is free.

    The event loop reads and writes meanwhile. The network and the look-ups leave the lock of the interpreter to others.
    """

    def __init__(self, most: int, tools: Sequence[S]) -> None:
        """Start a thread for each of `tools`, with which its work is done."""
        super().__init__(most)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._begun: list[float | None] = [None] * len(tools)
        """When each thread began its work, if it has any."""
        self._threads = [
            threading.Thread(target=self._run, args=(number, tool), name=f"compute-{number}", daemon=True)
            for number, tool in enumerate(tools)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads behind what waits."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def stuck_s(self) -> float:
        """Return how long the oldest work has been going on."""
        now = time.monotonic()
        return max((now - begun for begun in self._begun if begun is not None), default=0.0)

    def do(self, is_wanted: Callable[[], bool], work: Callable[[S], T], deliver: Callable[[T], None]) -> None:
        """Have work done and its result delivered when its turn comes, if it is wanted then; `work` raises nothing."""
        self._held += 1

        def end(result: T) -> None:
            self._held -= 1
            if result is not _LEFT and is_wanted():
                deliver(result)

        self._jobs.put(_Job(asyncio.get_running_loop(), is_wanted, work, end))

    async def turn(self, until: float, work: Callable[[S], T]) -> T:
        """Return what `work` does when its turn comes; raises RefusedRequestError if that is later than `until`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def outcome(tool: S) -> T | Exception:
            try:
                require_time(until)
                return work(tool)
            except Exception as error:
                return error

        def end(found: T | Exception) -> None:
            if found is _LEFT or done.done():
                return
            if isinstance(found, Exception):
                done.set_exception(found)
            else:
                done.set_result(found)

        self._jobs.put(_Job(loop, lambda: not done.done(), outcome, end))
        return await done

    def _run(self, number: int, tool: S) -> None:
        while (job := self._jobs.get()) is not None:
            self._begun[number] = time.monotonic()
            result = job.work(tool) if job.is_wanted() else _LEFT
            self._begun[number] = None
            try:
                job.loop.call_soon_threadsafe(job.end, result)
            except RuntimeError:  # the loop has ended
                return

"""Threads that work on the parts of a data set, and how far they are."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event, Lock
from typing import TypeVar

from persia_cli.data.parts import Part

Progress = Callable[[int, int], None]
"""Called with bytes of the source read so far and in all."""

Result = TypeVar("Result")

_MOST_WORKERS = 8
"""Threads unless told otherwise: each takes up to 100 MB."""


class _OtherFailedError(Exception):
    """Another part has failed."""


class Crew:
    """Threads that work on parts, and the bar of what they have read; the first failure ends all."""

    def __init__(self, workers: int | None, progress: Progress, total: int) -> None:
        self._workers = workers or min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = Lock()
        self._stop = Event()

    def each(self, parts: Sequence[Part], work: Callable[[Part], Result]) -> list[Result]:
        """Return the result of each part, in order; raises what the first of them to fail raised."""
        with ThreadPoolExecutor(self._workers, thread_name_prefix="prepare") as pool:
            futures = [pool.submit(work, part) for part in parts]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        self._stop.clear()
        errors = [future.exception() for future in futures if future in done]
        for error in errors:
            if error is not None and not isinstance(error, _OtherFailedError):
                raise error
        return [future.result() for future in futures]

    def read(self, nbytes: int) -> None:
        """Move the bar; raises to end the part where another one has failed."""
        if self._stop.is_set():
            raise _OtherFailedError
        with self._lock:
            self._done += nbytes
            self._progress(self._done, self._total)

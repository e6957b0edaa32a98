"""Threads that work on the parts of a data set, and their progress."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event, Lock
from typing import TypeVar

from persia_cli.data.parts import DatasetPart

Progress = Callable[[int, int], None]
"""Called with the bytes of the source read so far and in total."""

Result = TypeVar("Result")

_MOST_WORKERS = 8
"""Default limit of threads: each takes up to 100 MB."""


class _OtherFailedError(Exception):
    """Another part has failed."""


class WorkerPool:
    """Threads that work on parts, and the progress of what they read; the first failure stops all of them."""

    def __init__(self, workers: int | None, progress: Progress, total: int) -> None:
        self._workers = workers or min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = Lock()
        self._stop = Event()

    def each(self, parts: Sequence[DatasetPart], work: Callable[[DatasetPart], Result]) -> list[Result]:
        """Return the result of each part, in order; raises the exception of the first part that failed."""
        with ThreadPoolExecutor(self._workers, thread_name_prefix="prepare") as pool:
            futures = [pool.submit(self._work, work, part) for part in parts]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        self._stop.clear()
        for error in [future.exception() for future in futures if not future.cancelled()]:
            if error is not None and not isinstance(error, _OtherFailedError):
                raise error
        return [future.result() for future in futures]

    def _work(self, work: Callable[[DatasetPart], Result], part: DatasetPart) -> Result:
        """Work on a part unless another one has failed; a failure is recorded here, before the caller sees it."""
        if self._stop.is_set():
            raise _OtherFailedError
        try:
            return work(part)
        except BaseException:
            self._stop.set()
            raise

    def read(self, nbytes: int) -> None:
        """Report bytes read; raises to stop the part if another one has failed."""
        if self._stop.is_set():
            raise _OtherFailedError
        with self._lock:
            self._done += nbytes
            self._progress(self._done, self._total)

"""A second thread of a role, for work that must not delay its poll loop: disks and object stores, and kernels."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class _Task(NamedTuple):
    doing: str
    work: Callable[[], Any]
    then: Callable[[Any], None]


class TaskThread:
    """The tasks of one thread, run in order; `tick` passes their results to the poll loop's thread."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        """`name` is the thread's; `wake` is called on it after each task."""
        self._name = name
        self._wake = wake
        self._todo: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[_Task, Any, BaseException | None]] = queue.SimpleQueue()
        self._pending = 0
        self._current: tuple[str, float] | None = None
        self._thread: threading.Thread | None = None

    def run(self, doing: str, work: Callable[[], Any], then: Callable[[Any], None] = lambda result: None) -> None:
        """Run `work` after the earlier tasks, then `then` with its result; `doing` names it, as in "saving rows"."""
        self._pending += 1
        self._todo.put(_Task(doing, work, then))
        if self._thread is None:
            # A daemon: a file system that does not answer must not prevent the end of the process.
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()

    @property
    def is_idle(self) -> bool:
        """True if the result of every task has been passed on."""
        return not self._pending

    def age(self) -> tuple[str, float]:
        """Return the name of the present task and its age in seconds; an empty name if there is none."""
        current = self._current
        return (current[0], time.monotonic() - current[1]) if current is not None else ("", 0.0)

    def tick(self) -> None:
        """Pass on the available results; then raise the error of the first task that failed, if any."""
        failure: BaseException | None = None
        while not self._done.empty():
            task, result, error = self._done.get_nowait()
            self._pending -= 1
            if error is None:
                task.then(result)
            else:
                failure = failure or error
        if failure is not None:
            raise failure

    def close(self, seconds: float = 5.0) -> None:
        """End the thread after its tasks; wait for that at most `seconds`."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join(seconds)

    def _serve(self) -> None:
        while (task := self._todo.get()) is not None:
            self._current = (task.doing, time.monotonic())
            result, failure = None, None
            try:
                result = task.work()
            except BaseException as error:
                failure = error
            self._current = None
            self._done.put((task, result, failure))
            self._wake()

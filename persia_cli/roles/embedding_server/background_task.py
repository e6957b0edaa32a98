"""Work beside a poll loop: on another thread, so that heartbeats go on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from persia_cli.roles.session import CoordinatorSession
from persia_cli.wire.loop import Waker


class BackgroundTask:
    """One piece of work at a time, such as reading files, that the coordinator is told of while it lasts."""

    def __init__(self, session: CoordinatorSession, waker: Waker, thread: ThreadPoolExecutor) -> None:
        self._session, self._waker, self._thread = session, waker, thread
        self._under_way: tuple[Future[Any], Callable[[Any], None]] | None = None

    def begin(self, doing: str, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Begin the work; `then` gets its result, on the loop's thread."""
        self._session.work.begin(doing)
        future = self._thread.submit(work)
        future.add_done_callback(lambda _: self._waker.wake())
        self._under_way = (future, then)

    def finish(self) -> None:
        """End the work if it is done; raises the error because of which it failed."""
        if self._under_way is not None and self._under_way[0].done():
            future, then = self._under_way
            self._under_way = None
            self._session.work.end()
            then(future.result())

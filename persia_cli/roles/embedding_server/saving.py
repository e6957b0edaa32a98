"""Saving a shard while it serves: the poll loop copies rows, and a second thread writes them."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from persia_cli.config.schema import Cluster
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.row_files import write_portions
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.store.row_store import Keys, Tables
from persia_cli.store.shard import Shard
from persia_cli.store.snapshot import SnapshotRows

SHARE = 0.06
"""Fraction of the time of all processors that the saves of all embedding servers take from training."""
WHOLE = 2.5
"""Estimated processor time from memory to disk, as a multiple of the time for copying rows."""
QUIET_S = 0.5
"""Seconds without a request after which a save runs at full speed, since the job waits for it."""


def servers_sharing(cluster: Cluster, index: int) -> int:
    """Return the number of embedding servers that share this server's processors: all, or those with the same pin."""
    pins = [cluster.processors_of("embedding-server", number) for number in range(cluster.embedding_servers)]
    return pins.count(pins[index])


class SavePace:
    """The pace of a save: when the next rows are due; for the thread that copies them."""

    def __init__(self, servers: int, awaited: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with a save; `servers` share the processors, and an `awaited` save runs at full speed."""
        self._share = SHARE * len(os.sched_getaffinity(0)) / servers
        self._awaited, self._clock = awaited, clock
        self._served = self._next = clock()

    def record_request(self) -> None:
        """Record that training continues."""
        self._served = self._clock()

    def record_copy(self, processor_s: float) -> None:
        """Record the processor time of copying rows."""
        self._next = self._clock() + processor_s * WHOLE / self._share

    def due_in_s(self) -> float:
        """Return the seconds until the next rows are due, if no request arrives."""
        if self._awaited:
            return 0.0
        return max(0.0, min(self._next, self._served + QUIET_S) - self._clock())


PORTIONS_AHEAD = 4
"""Maximum number of portions that are copied and not yet written."""
NICENESS = 5
"""Niceness of the writing thread, which lets other threads run first where processors are scarce."""
CHECK_S = 0.5
IDLE_S = 0.2
"""Longest wait for requests in seconds."""


class AbandonedError(Exception):
    """Raised in the writing thread when the checkpoint is not needed any more."""


class ShardSaving:
    """One save of a shard that changes meanwhile; every method but `_write` runs on the poll loop's thread."""

    def __init__(
        self,
        shard: Shard,
        folder: Location,
        writer: ThreadPoolExecutor,
        wake: Callable[[], None],
        on_rows: Callable[[int], None],
        pace: SavePace | None = None,
        since: int | None = None,
    ) -> None:
        """Begin to save the shard in its present state.

        `wake` is called when there is something to do. Without a `pace`, the save runs at full speed. `since` is as in
        `Shard.begin_snapshot`.
        """
        self._shard, self._on_rows, self._wake = shard, on_rows, wake
        self._pace = pace or SavePace(1, awaited=True)
        self._snapshot = shard.begin_snapshot(since=since)
        self._snapshot.make_space = self._copy_or_wait
        self._cold = self._snapshot.cold
        self._copied: queue.Queue[tuple[int, SnapshotRows, bool]] = queue.Queue(PORTIONS_AHEAD)
        self._abandoned = threading.Event()
        self._files: Future[list[SavedFile]] = writer.submit(self._write, folder)
        self._files.add_done_callback(lambda _: wake())

    @property
    def done(self) -> bool:
        """True if all is written, or writing has failed."""
        return self._files.done()

    @property
    def can_copy(self) -> bool:
        """True if rows are left to copy and the writing thread is not behind."""
        return not self._snapshot.over and not self._copied.full()

    @property
    def pauses(self) -> int:
        """Number of times that an update had to wait until rows before it were copied."""
        return self._snapshot.pauses

    def copy_next(self) -> None:
        """Copy the next rows, about two milliseconds of work."""
        if self.can_copy:
            start_s = time.thread_time()
            self._copied.put_nowait(self._snapshot.next_portion())
            self._pace.record_copy(time.thread_time() - start_s)

    def patience_s(self, awaited: bool) -> float:
        """Return how long to wait for requests before `copy_if_due`; the waker ends the wait too.

        Rows are due at once if look-ups wait for that (`awaited`), or would soon.
        """
        if not self.can_copy:
            return IDLE_S
        return 0.0 if awaited or self._snapshot.is_short else min(IDLE_S, self._pace.due_in_s())

    def copy_if_due(self, awaited: bool) -> None:
        """Copy the next rows if they are due."""
        if not self.patience_s(awaited):
            self.copy_next()

    def has_space(self, groups: Sequence[tuple[Keys, Tables]], create: bool) -> bool:
        """Return whether a look-up can be answered before more rows are copied.

        `groups` are its keys and their tables. One that does not `create` rows, as of an evaluation, changes nothing.
        """
        self._pace.record_request()
        return not create or all(self._snapshot.has_space(number, *group) for number, group in enumerate(groups))

    def finish(self) -> list[SavedFile]:
        """Return the files, once `done`; raise the error because of which they could not be written."""
        self._shard.end_snapshot()
        return self._files.result()

    def abandon(self) -> None:
        """Stop writing as soon as possible; the files are not needed."""
        self._abandoned.set()
        self._shard.end_snapshot()

    def _copy_or_wait(self) -> None:
        """Copy the next rows, if necessary after the writing thread has written others."""
        while not self.can_copy and not self.done:
            self._abandoned.wait(0.001)
        if self.done:
            # Writing has failed: the snapshot is not needed any more, and the loop will raise the error.
            self._snapshot.drop()
        else:
            self.copy_next()

    # The writing thread

    def _write(self, folder: Location) -> list[SavedFile]:
        lower_thread_priority()
        return write_portions(self._shard, self._portions, folder, self._count, self._cold, self._snapshot.left)

    def _count(self, rows: int) -> None:
        if self._abandoned.is_set():
            raise AbandonedError
        self._on_rows(rows)

    def _portions(self, group: int) -> Iterator[SnapshotRows]:
        last = False
        while not last:
            number, portion, last = self._next()
            assert number == group
            # Free space in the queue can be filled at once.
            self._wake()
            yield portion
            self._snapshot.give_back(group, portion)

    def _next(self) -> tuple[int, SnapshotRows, bool]:
        while True:
            if self._abandoned.is_set():
                raise AbandonedError
            try:
                return self._copied.get(timeout=CHECK_S)
            except queue.Empty:
                continue


def lower_thread_priority() -> None:
    """Give this thread a niceness of at least NICENESS; without root it cannot be lowered again."""
    thread = threading.get_native_id()  # Linux counts niceness per thread
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))

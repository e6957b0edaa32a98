"""Copies of a run's record beside its checkpoints, where `checkpoint.record` asks for them.

An object store appends to no file, so the record itself is in the run directory; at the beginning, with each checkpoint
that is published, and at the end of the job, its files are put whole at `checkpoint.path`, where they make up a run
directory. The figures that a checkpoint counts are there before it is, so that another machine can go on from there
alone; between, a small file says that the job lives. Where another run directory has taken the run over, nothing is
written any more.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from persia_cli.config.record import CONFIG
from persia_cli.config.schema import Run
from persia_cli.errors import DiskError, PersiaError
from persia_cli.observe.journal import EVENTS, METRICS, Journal, Tail
from persia_cli.observe.record_elsewhere import ALIVE, BEAT_S, FILES
from persia_cli.plan.job import Job
from persia_cli.storage.places import Place, put
from persia_cli.storage.remote import DEADLINE_S, within
from persia_cli.store.manifest import checkpoints_of
from persia_cli.store.writer import require_writer

log = logging.getLogger(__name__)

LOOK_S = 1.0
PART_OF_STOP = 0.8
"""Part of `cluster.stop_timeout_s` that the last copy may take where somebody waits to kill this process."""


@contextmanager
def copied_record(run: Run, job: Job, in_haste: Callable[[], bool]) -> Iterator[None]:
    """Copy the record while the block runs, and when it ends; a copy that fails changes nothing of the job.

    `in_haste` returns in the end whether a signal ends the job.
    """
    place = _place_of_copies(run, job)
    if place is None:
        yield
        return
    copies = RecordCopies(Path(job.run_dir), place)
    try:
        yield
    except BaseException:
        copies.end(PART_OF_STOP * run.cluster.stop_timeout_s)
        raise
    copies.end(PART_OF_STOP * run.cluster.stop_timeout_s if in_haste() else DEADLINE_S)


def _place_of_copies(run: Run, job: Job) -> Place | None:
    """Return where the record is copied to; None if nobody wants that, or if it is there already."""
    if job.task != "train" or not run.checkpoint.record:
        return None
    run_dir = Path(job.run_dir)
    place = checkpoints_of(run_dir, run.checkpoint.path)
    return None if isinstance(place, Path) and place.resolve() == run_dir.resolve() else place


def copy_figures(run: Run, job: Job) -> None:
    """Put the figures so far where the record is copied to, for a checkpoint that counts them.

    Raises DiskError, and OvertakenError where another run directory writes now.
    """
    if run.checkpoint.path is not None:
        require_writer(checkpoints_of(Path(job.run_dir), run.checkpoint.path), Path(job.run_dir))
    if (place := _place_of_copies(run, job)) is not None:
        put(place / METRICS, _content(Path(job.run_dir) / METRICS))


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


class RecordCopies:
    """Copies the files of a record to a place, on a thread of its own; belongs to the thread that makes it."""

    def __init__(self, run_dir: Path, place: Place) -> None:
        self._run_dir, self._place = run_dir, place
        self._events = Tail(run_dir / EVENTS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="record-copies", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Make no more copies; one that is under way goes on for as long as the store takes."""
        self._ended.set()

    def end(self, limit_s: float) -> None:
        """Make the last copy within so many seconds, or write an event that says why there is none."""
        self.stop()
        self._thread.join(limit_s / 2)
        failure = f"the store has not answered within {limit_s / 2:g} s"
        if not self._thread.is_alive():  # else the older copy might come after the last
            with within(limit_s / 2):
                failure = self._copy()
        if failure:
            self._tell(f"the end of the record was not copied to {self._place}: {failure}")

    def _tell(self, text: str) -> None:
        """Write a warning to the events, which the coordinator has closed."""
        log.warning("%s", text)
        with suppress(DiskError), closing(Journal(self._run_dir / EVENTS)) as events:
            events.write(event="warning", text=text)

    def _follow(self) -> None:
        """Copy what has no part in a checkpoint: the figures are copied before it (`copy_figures`), and at the end."""
        due, failed, beats = True, False, 0
        begin = time.monotonic()
        while True:
            due |= any(event["event"] == "saved" for event in self._events.new())
            if due:
                due = bool(failure := self._copy((CONFIG, EVENTS)))
                if failure and not failed:
                    log.warning("the record was not copied to %s: %s", self._place, failure)
                failed = due
            if time.monotonic() - begin >= beats * BEAT_S:
                beats += 1
                self._beat(beats)
            if self._ended.wait(LOOK_S):
                return

    def _beat(self, number: int) -> None:
        """Give a sign of life; one that the store does not take is missing, and the next one comes soon."""
        with suppress(OSError, PersiaError):
            require_writer(self._place, self._run_dir)
            put(self._place / ALIVE, json.dumps({"beat": number, "time": round(time.time(), 3)}).encode() + b"\n")

    def _copy(self, names: Sequence[str] = FILES) -> str:
        """Put files there; return why that failed, if it did."""
        try:
            require_writer(self._place, self._run_dir)
            for name in names:
                if (self._run_dir / name).exists():
                    put(self._place / name, (self._run_dir / name).read_bytes())
        except (OSError, PersiaError) as error:
            return str(error)
        return ""

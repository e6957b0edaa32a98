"""What a start of a run changes in its folder, taken back if the start is refused before anything is trained."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from persia_cli.disk import rename, write_whole
from persia_cli.errors import DiskError, UserError
from persia_cli.observe.history import EARLIER, ENDS
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.observe.recordings import RECORDINGS
from persia_cli.observe.tensorboard import FOLDER as TENSORBOARD
from persia_cli.plan.job import JobPlan
from persia_cli.store.writer import remove_own_unfinished

GROWING = (EARLIER, TENSORBOARD, RECORDINGS)
"""Folders of a run directory to which each start adds files or folders of its own."""


@contextmanager
def taken_back_if_refused(run_dir: Path, kept: int, aside: Sequence[str], passing: Sequence[str]) -> Iterator[None]:
    """Leave the folder of a run as it was if the block raises UserError before the job has begun its first phase.

    `kept` is the size up to which a start leaves the lines of metrics, `aside` what it moves or copies to the folder of
    an earlier start, `passing` the small files that it removes or replaces. All processes of the job must have ended
    when the block does. Files that other commands make in the folder meanwhile stay.
    """
    before = _Before(run_dir, kept, aside, passing)
    try:
        yield
    except UserError as error:
        if not before.has_trained():
            try:
                before.restore()
            except (OSError, DiskError) as failed:
                error.add_note(f"{run_dir} could not be left as it was ({failed}); {EARLIER}/ has its last start.")
        raise


def remove_leftovers(plan: JobPlan) -> None:
    """Remove the checkpoints that a job has left unfinished, now that its processes have ended, if it had begun."""
    if _has_begun(plan.run_dir):
        remove_own_unfinished(plan.run_dir, plan.run.checkpoint.path)


def _has_begun(run_dir: Path) -> bool:
    """Return True if the last start of a job has come to its first phase."""
    phases = [event["phase"] for event in read_journal(run_dir / EVENTS) if event["event"] == "phase"]
    return any(phase not in ENDS for phase in phases)


class _Before:
    """What there is in the folder of a run before a start changes it."""

    def __init__(self, run_dir: Path, kept: int, aside: Sequence[str], passing: Sequence[str]) -> None:
        self._run_dir, self._kept, self._aside = run_dir, kept, aside
        self._names = {folder: set(_names(run_dir / folder)) for folder in ("", *GROWING)}
        self._passing = {name: _content(run_dir / name) for name in passing}
        self._events = _identity(run_dir / EVENTS)
        self._tail = b""
        if (run_dir / METRICS).exists():
            with (run_dir / METRICS).open("rb") as metrics:
                metrics.seek(kept)
                self._tail = metrics.read()

    def has_trained(self) -> bool:
        """Return True if the job has come to its first phase, or may have: then its record counts."""
        lines = self._run_dir / METRICS
        known = (self._kept, self._kept + len(self._tail))
        if (lines.stat().st_size not in known) if lines.exists() else METRICS in self._names[""]:
            return True  # though its events have been removed
        return _identity(self._run_dir / EVENTS) != self._events and _has_begun(self._run_dir)

    def restore(self) -> None:
        """Make the folder what it was."""
        for folder in self._new(EARLIER):
            for name in self._aside:
                if (folder / name).exists():
                    _remove(self._run_dir / name)
                    rename(folder / name, self._run_dir / name)
        for name in (*self._aside, METRICS):
            if name not in self._names[""]:
                _remove(self._run_dir / name)
        self._restore_metrics()
        for name, content in self._passing.items():
            if content is None:
                _remove(self._run_dir / name)
            elif _content(self._run_dir / name) != content:
                write_whole(self._run_dir / name, content)
        for grown in GROWING:
            for path in self._new(grown):
                _remove(path)
            if grown not in self._names[""]:
                with suppress(OSError):
                    (self._run_dir / grown).rmdir()

    def _restore_metrics(self) -> None:
        metrics = self._run_dir / METRICS
        if METRICS in self._names[""] and metrics.stat().st_size < self._kept + len(self._tail):
            with metrics.open("r+b") as file:
                file.seek(self._kept)
                file.write(self._tail)
                os.fsync(file.fileno())

    def _new(self, folder: str) -> list[Path]:
        return [self._run_dir / folder / name for name in _names(self._run_dir / folder) - self._names[folder]]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _identity(file: Path) -> tuple[int, int] | None:
    return (file.stat().st_dev, file.stat().st_ino) if file.exists() else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

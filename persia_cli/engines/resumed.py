"""The record of a resumed run up to the checkpoint; the rest moves to another folder."""

import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from persia_cli.disk import claim_folder, is_held, rename, write_whole, writing
from persia_cli.errors import CheckpointError, FormatError, UserError, one_line
from persia_cli.observe.history import EARLIER
from persia_cli.observe.journal import EVENTS, METRICS, PORTIONS, is_being_written, object_of, read_journal
from persia_cli.observe.journal_keys import OF_EVALUATIONS
from persia_cli.observe.record_state import copies_in
from persia_cli.plan.job import JobPlan
from persia_cli.storage.locations import Location, location_of
from persia_cli.store.checkpoints.claim import WRITER
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, finished_steps, read_manifest, verify
from persia_cli.store.checkpoints.retention import remove_unfinished
from persia_cli.store.checkpoints.saved import SavedFile

DRIVER = "driver"
"""Folder with the process that drives a job on several machines, and its log."""
DAMAGED = ".damaged-"
"""Suffix of the folder of a checkpoint that is damaged, before a number."""


def record_so_far(plan: JobPlan) -> dict[str, bytes]:
    """Return the record up to the checkpoint with which a job goes on, by the names of its files.

    It has the lines of metrics, from the copy in the checkpoint, and the events that belong to their evaluations; of
    data that grows the portions too, unless the run directory has them, which then stay, also those that come later.
    Raises CheckpointError if that is damaged, UserError if the run directory is another one and has files.
    """
    others = [path for path in plan.run_dir.iterdir() if path.name not in (WRITER, DRIVER)]
    if others and _source(plan) != plan.run_dir.absolute():
        raise UserError(
            f"{plan.run_dir.absolute()} contains other files; choose an empty folder or a new one as --run-dir"
        )
    checkpoint = location_of(plan.job.load or "")
    manifest = read_manifest(checkpoint)
    copies = {file.name: file for file in copies_in(manifest)}
    if METRICS not in copies:
        raise CheckpointError(f"{checkpoint} has no copy of {METRICS}; use another checkpoint")
    metrics = _content(checkpoint, copies[METRICS])[: manifest.progress.metrics_bytes]
    portions = {}
    if PORTIONS in copies and not (plan.run_dir / PORTIONS).exists():
        portions = {PORTIONS: _content(checkpoint, copies[PORTIONS])}
    evaluated = {line["step"] for line in _objects(metrics.splitlines(keepends=True)) if line.get("split") == "eval"}
    events = _source(plan) / EVENTS
    lines = events.read_bytes().splitlines(keepends=True) if events.exists() else []
    of_evaluations = [line for line in lines if any(_is_of(event, evaluated) for event in _objects([line]))]
    return {METRICS: metrics, EVENTS: b"".join(of_evaluations)} | portions


def _content(checkpoint: Location, copy: SavedFile) -> bytes:
    """Return the content of a copy of the record in a checkpoint; raises CheckpointError if it is damaged."""
    path = checkpoint / copy.folder / copy.name
    verify(path, copy)
    return path.read_bytes()


def _objects(lines: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of lines, without damaged ones, which end no rollback."""
    yield from (line for line in map(object_of, lines) if line is not None)


def _is_of(event: Mapping[str, Any], evaluated: Collection[int]) -> bool:
    """Return True if an event describes the evaluation of one of these steps."""
    return event.get("event") in OF_EVALUATIONS and event.get("step") in evaluated


def continue_record(plan: JobPlan, record: Mapping[str, bytes], moved: Sequence[str], copied: Sequence[str]) -> None:
    """Prepare the run directory of a job that goes on from a checkpoint, which is its newest or is in another run.

    The metrics and the files `moved` and `copied` of the last start move to another folder. The steps after the
    checkpoint are trained again, so only the lines of `record` stay. The folder must be `locked`. Raises DiskError.
    """
    if _source(plan) == plan.run_dir.absolute():
        _set_aside(plan.run_dir, [METRICS, *moved], copied)
    for name, lines in record.items():
        write_whole(plan.run_dir / name, lines)


def _source(plan: JobPlan) -> Path:
    assert plan.job.load is not None
    return (plan.resumes or Path(plan.job.load).parents[1]).absolute()


def start_over(run_dir: Path, moved: Sequence[str]) -> None:
    """Move what a run without a checkpoint has recorded to a separate folder, so that it can begin again.

    Half a checkpoint in the run directory goes too; one elsewhere goes when the run begins.

    Raises UserError if the run still goes on, DiskError.
    """
    with locked(run_dir):
        remove_unfinished(run_dir / CHECKPOINTS)
        _set_aside(run_dir, [METRICS, CHECKPOINTS, *moved], ())


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Raise UserError if a process writes the record of the run, or another one is in this context.

    A driver is in it from before it prepares the folder until the end of its job, since the coordinator writes the
    record only from later on: kernels may have to be compiled first.
    """
    lock = os.open(run_dir, os.O_RDONLY)
    try:
        if _is_in_use(lock, run_dir):
            raise UserError(f"the run in {run_dir} still goes on, or is being resumed by another command")
        yield
    finally:
        os.close(lock)


def is_at_work(run_dir: Path) -> bool:
    """Return whether a driver on this machine has locked the folder of a run, or a coordinator its events."""
    try:
        folder = os.open(run_dir, os.O_RDONLY)
    except OSError:
        return False  # It was removed, and a run whose folder is removed ends.
    try:
        return _is_in_use(folder, run_dir)
    finally:
        os.close(folder)


def _is_in_use(folder: int, run_dir: Path) -> bool:
    with suppress(OSError):  # Some network file systems lock no folders.
        if is_held(folder):
            return True
    return (run_dir / EVENTS).exists() and is_being_written(run_dir / EVENTS)


def _set_aside(run_dir: Path, moved: Sequence[str], copied: Sequence[str]) -> None:
    with writing(run_dir / EARLIER):
        folder = claim_folder(run_dir / EARLIER / "start")
        for name in copied:
            if (run_dir / name).exists():
                write_whole(folder / name, (run_dir / name).read_bytes())
        for name in moved:
            if (run_dir / name).exists():
                rename(run_dir / name, folder / name)


def newest_of(checkpoints: Location) -> Location | None:
    """Return the newest complete checkpoint of a run; None if it has none."""
    steps = finished_steps(checkpoints)
    return checkpoint_folder(checkpoints, steps[-1]) if steps else None


def newest_sound(checkpoints: Location, whole: bool, report: Callable[[str], None]) -> Location | None:
    """Return the newest checkpoint of a run that is not damaged; None if the run has none.

    A damaged one on a disk is reported and renamed, so that it stays and is not used. The `whole` content is compared
    with its checksums, or only once damage is found. No process may write the checkpoints. Raises CheckpointError if
    all are damaged, or one in an object store, and DiskError.
    """
    damage = ""
    while (newest := newest_of(checkpoints)) is not None and (damage := damage_of(newest, whole)):
        if not isinstance(newest, Path):
            raise CheckpointError(damage)
        aside = next(
            path for number in itertools.count(1) if not (path := newest.with_suffix(f"{DAMAGED}{number}")).exists()
        )
        with writing(aside):
            rename(newest, aside)
        report(f"{damage}; it is {aside.name} from now on, and not used")
        whole = True
    if newest is None and damage:
        raise CheckpointError(f"all checkpoints in {checkpoints} are damaged")
    return newest


def has_failed_to_begin(run_dir: Path) -> bool:
    """Return True if the last start of a run failed before its first phase, so possibly at its checkpoint."""
    return [line["phase"] for line in read_journal(run_dir / EVENTS) if line["event"] == "phase"] == ["failed"]


def damage_of(checkpoint: Location, whole: bool) -> str:
    """Return the damage of a checkpoint, or an empty text; with `whole`, read all its content.

    Raise FormatError for one of another format, which is not damaged.
    """
    try:
        manifest = read_manifest(checkpoint)
        for file in manifest.files if whole else ():
            verify(checkpoint / file.folder / file.name, file)
    except FormatError:
        raise
    except CheckpointError as error:
        return one_line(error)
    return ""

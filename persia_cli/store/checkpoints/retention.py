"""The retention of a run's checkpoints: the ones to retain, the best one, and the one to use."""

import logging
from bisect import insort
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress

import msgspec

from persia_cli.control.evaluation_tracker import Best
from persia_cli.control.phases import Trigger
from persia_cli.errors import CheckpointError, DiskError
from persia_cli.storage import locations
from persia_cli.storage.checked_json import read_checked
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import (
    MANIFEST,
    checkpoint_folder,
    decode_manifest,
    finished_steps,
    newest_checkpoint,
    owner,
    read_manifest,
    step_of,
    unfinished_folders,
    write_checked,
)

log = logging.getLogger(__name__)

BEST = "best.json"
"""Name of the file, in the folder of checkpoints, that names the best one."""


class BestPointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of that file: the step of the best checkpoint, and its value of the metric that chose it."""

    step: int
    metric: str
    value: float | None


# Created at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
_BEST_DECODER = msgspec.json.Decoder(BestPointer)


class Retention:
    """The checkpoints that a job has saved; it removes those that need not be retained."""

    def __init__(self, checkpoints: Location, keep: int | None) -> None:
        """Start with the existing checkpoints, as a resumed run has them.

        `keep` is the number of checkpoints to retain in addition to the best (None: all).
        """
        self._checkpoints, self._keep = checkpoints, keep
        best = best_checkpoint(checkpoints)
        self._best = step_of(best) if best else None
        self._unwritten: BestPointer | None = None
        """The pointer to a best checkpoint that has not been written yet."""
        triggers = {step: _trigger_of(checkpoint_folder(checkpoints, step)) for step in finished_steps(checkpoints)}
        self._regular = {step for step, trigger in triggers.items() if trigger not in (None, "best", "end")}
        # The checkpoint that an earlier start saved at its end is never removed.
        self._saved = [step for step in triggers if step == self._best or step in self._regular]

    def add(self, step: int, best: Best | None, trigger: Trigger) -> None:
        """Add the checkpoint of a step, once it is published; `best` is given if it is the best so far.

        Raise DiskError if the note of the best cannot be written; then nothing is removed, and the next call tries
        again: the best must not be removed while the note names it.
        """
        if step not in self._saved:
            insort(self._saved, step)
        if trigger not in ("best", "end"):
            self._regular.add(step)
        if best is not None:
            self._unwritten = BestPointer(step, best.metric, best.value)
        if self._unwritten is not None:
            write_checked(self._checkpoints / BEST, self._unwritten)
            self._best, self._unwritten = self._unwritten.step, None
        doomed = superfluous(self._saved, self._best, self._keep, self._regular)
        assert not {self._best, self._saved[-1]} & set(doomed)
        for old in removable(self._checkpoints, doomed):
            self._saved.remove(old)
            _remove(checkpoint_folder(self._checkpoints, old))


def superfluous(saved: Sequence[int], best: int | None, keep: int | None, regular: Set[int]) -> list[int]:
    """Return the steps of `saved`, which is in ascending order, that should not be retained.

    Kept: the best, the last, and the newest `keep` regular checkpoints. A checkpoint that was saved only because it was
    the best, or the end, is not regular.
    """
    due = [step for step in saved if step in regular or (step == saved[-1] and step != best)]
    retained = {*(due if keep is None else due[-keep:]), best}
    return [step for step in saved if step not in retained]


def removable(checkpoints: Location, doomed: Sequence[int]) -> list[int]:
    """Return the steps of `doomed`, without the newest whole checkpoint among them if no other is whole."""
    if not doomed:
        return []
    retained = set(finished_steps(checkpoints)) - set(doomed)
    last = newest_whole(checkpoints, doomed) if newest_whole(checkpoints, retained) is None else None
    return [step for step in doomed if step != last]


def newest_whole(checkpoints: Location, steps: Iterable[int]) -> int | None:
    """Return the newest of these steps whose checkpoint passes the checks of `read_manifest`."""
    for step in sorted(steps, reverse=True):
        with suppress(CheckpointError):
            read_manifest(checkpoint_folder(checkpoints, step))
            return step
    return None


def _trigger_of(folder: Location) -> Trigger | None:
    try:
        return decode_manifest(folder).trigger
    except CheckpointError:
        return None  # a damaged checkpoint is never removed automatically; a user of it gets an error


def _remove(folder: Location) -> None:
    """Remove a checkpoint so that a partly removed one never looks complete; a failure is logged."""
    try:
        locations.remove(folder, MANIFEST)
    except (OSError, DiskError, CheckpointError) as error:
        log.warning("the checkpoint %s could not be removed: %s", folder, error)


def remove_unfinished(checkpoints: Location) -> None:
    """Remove unfinished checkpoints; call this only if no process writes them any more."""
    try:
        unfinished = unfinished_folders(checkpoints)
    except (OSError, CheckpointError) as error:
        log.warning("unfinished checkpoints could not be removed: %s", error)
        return
    for folder in unfinished:
        _remove(folder)


def best_checkpoint(checkpoints: Location) -> Location | None:
    """Return the folder of the best checkpoint, None if none was chosen; raises CheckpointError if BEST is damaged."""
    path = checkpoints / BEST
    try:
        return checkpoint_folder(checkpoints, _BEST_DECODER.decode(read_checked(path)).step)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); remove it, and the newest checkpoint will be used as the best"
        ) from error


def choose_checkpoint(checkpoints: Location, step: int | None = None) -> Location:
    """Return the folder of a step's checkpoint; without a step, of the best, or of the newest if there is no best.

    Raises CheckpointError if there is none.
    """
    if step is None:
        return best_checkpoint(checkpoints) or newest_checkpoint(checkpoints)
    there = finished_steps(checkpoints)
    if step not in there:
        steps = f"it has those of steps {', '.join(map(str, there))}" if there else "it has no complete checkpoint"
        raise CheckpointError(f"{owner(checkpoints)} has no checkpoint of step {step}; {steps}")
    return checkpoint_folder(checkpoints, step)

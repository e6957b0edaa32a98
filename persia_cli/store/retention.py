"""Which checkpoints of a run stay, which of them is the best, and which one is meant."""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from persia_cli.control.judge import Best
from persia_cli.errors import CheckpointError
from persia_cli.store.manifest import CHECKPOINTS, checkpoint_folder, finished_steps, newest_checkpoint

log = logging.getLogger(__name__)

BEST = "best.json"
"""File beside the checkpoints that says which of them is the best, and by what."""


class Retention:
    """The checkpoints that a job has saved; lets go of those that are not to be kept."""

    def __init__(self, run_dir: Path, keep: int | None, every: int | None) -> None:
        """`keep` is how many checkpoints stay beside the best (None: all), `every` the steps between those due."""
        self._run_dir, self._keep, self._every = run_dir, keep, every
        self._saved: list[int] = []
        self._best: int | None = None

    def add(self, step: int, best: Best | None) -> None:
        """Take the checkpoint of a step that has just been published; `best` is given where it is the best so far."""
        self._saved.append(step)
        if best is not None:
            self._best = step
            _write_best(self._run_dir, best)
        for old in superfluous(self._saved, self._best, self._keep, self._every):
            self._saved.remove(old)
            _remove(checkpoint_folder(self._run_dir, old))


def superfluous(saved: Sequence[int], best: int | None, keep: int | None, every: int | None) -> list[int]:
    """Return which of the steps `saved`, in rising order, are not to be kept.

    The best stays, the newest `keep` (None: all) of the others that were due do, and the newest of all does. One that
    was saved only for being the best is not due.
    """
    due = [step for step in saved if (every and step % every == 0) or (step == saved[-1] and step != best)]
    kept = {*(due if keep is None else due[-keep:]), best}
    return [step for step in saved if step not in kept]


def _write_best(run_dir: Path, best: Best) -> None:
    path = run_dir / CHECKPOINTS / BEST
    part = path.with_name(f"{BEST}.part")
    note = {"step": best.step, "metric": best.metric, "value": best.value}
    part.write_text(json.dumps(note) + "\n", encoding="utf-8")
    part.replace(path)


def _remove(folder: Path) -> None:
    """Remove a checkpoint; under another name first, so that no half of it is ever taken for a whole one."""
    doomed = folder.with_name(f"{folder.name}.removed")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        log.warning("the checkpoint %s could not be removed: %s", folder, error)


def best_checkpoint(run_dir: Path) -> Path | None:
    """Return the folder of the best checkpoint, None if none was chosen; raises CheckpointError for a damaged note."""
    path = run_dir / CHECKPOINTS / BEST
    try:
        step = json.loads(path.read_text(encoding="utf-8"))["step"]
        return checkpoint_folder(run_dir, int(step))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); say which checkpoint is meant by --step") from error


def choose_checkpoint(run_dir: Path, step: int | None = None) -> Path:
    """Return the folder of the checkpoint of a step, or else of the best, or of the newest if none was chosen as best.

    Raises CheckpointError if there is none.
    """
    if step is None:
        return best_checkpoint(run_dir) or newest_checkpoint(run_dir)
    there = finished_steps(run_dir)
    if step not in there:
        steps = f"those of steps {', '.join(map(str, there))}" if there else "none at all"
        raise CheckpointError(f"{run_dir} holds no checkpoint of step {step}, but {steps}")
    return checkpoint_folder(run_dir, step)

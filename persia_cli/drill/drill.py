"""A drill: a new job whose processes are killed at a step, and the same job undisturbed."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from persia_cli.checkpoint.comparison import Diff, compare_checkpoints
from persia_cli.config.schema import Run, SyncMode
from persia_cli.disk import writing
from persia_cli.drill.job import DrilledJob, events_of
from persia_cli.drill.result import DrillResult
from persia_cli.engines.job import JOB
from persia_cli.engines.resumed import newest_of
from persia_cli.engines.role import read_job
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import CheckpointError, RoleError
from persia_cli.observe.history import read_history
from persia_cli.store.checkpoints.manifest import checkpoints_of

DRIVER = "driver"
DRILLED, UNDISTURBED = "drilled", "undisturbed"
"""Folders of the two runs of a drill."""


@dataclass(frozen=True)
class Drill:
    """A job and the processes that are killed at a step; `follow` is called with the last step and the run's folder."""

    run: Run
    arguments: Sequence[str]
    """Settings of the run, as `persia train` takes them."""
    targets: tuple[str, ...]
    step: int
    follow: Callable[[int, str], None]

    def carry_out(self, folder: Path, compare: bool) -> DrillResult:
        """Train the job in a folder, with its kill; then the same job undisturbed, if `compare`.

        Raises UserError or RoleError if the job ends before the kill. All processes have ended when this call returns.
        """
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with terminating_interrupts():
            with self._job(folder / DRILLED) as job:
                result = self._kill(job)
                problem = "" if result.problems else job.wait()
            self._measure(result, problem)
            if compare and not result.problems:
                with self._job(folder / UNDISTURBED) as job:
                    problem = job.wait()
                self._compare(result, job.run_dir, problem)
        return result

    def _job(self, run_dir: Path) -> DrilledJob:
        return DrilledJob(run_dir, self.arguments, lambda step: self.follow(step, run_dir.name))

    def _kill(self, job: DrilledJob) -> DrillResult:
        reached = job.wait_for_step(self.step)
        replicas = job.replicas()
        names = [name for name in self.targets if name != DRIVER]
        if gone := sorted(set(names) - replicas.keys()):
            raise RoleError(f"{', '.join(gone)} had no process at step {reached:,} that could be killed")
        result = DrillResult(self.targets, job.run_dir, self.run.mode.kind, reached, time.time())
        for name in names:
            replicas[name].send(signal.SIGKILL)
        if DRIVER in self.targets:
            if left := job.kill_driver():
                result.problems.append(f"{len(left)} processes live on after the driver was killed")
            result.noticed_s = round(time.time() - result.at, 3)
            job.start("resume=auto")
        return result

    def _measure(self, result: DrillResult, problem: str) -> None:
        """Read the measurements from the record of the run; `problem` is why the job failed."""
        history, run = read_history(result.run_dir), self.run
        if problem:
            result.problems.append(problem)
        elif DRIVER in self.targets:
            on = [line["time"] for line in history.training if line["time"] > result.at + (result.noticed_s or 0.0)]
            result.recovered_s = round(on[0] - result.at, 3) if on else None
            result.cause = "all processes had ended, and the job was started again"
        else:
            result.take_recovery(events_of(result.run_dir), run.train.batch)
        result.take_standstill(history.training)
        if result.problems:
            return
        # In sync mode the gradients of all ranks are one update.
        of_step = 1 if isinstance(run.mode, SyncMode) else run.cluster.nn_workers
        last = max((line["step"] for line in history.training), default=0)
        result.take_updates(history.events, (last - read_job(result.run_dir / JOB).first_step) * of_step)
        result.auc = _auc(result.run_dir)

    def _compare(self, result: DrillResult, undisturbed: Path, problem: str) -> None:
        """Note the differences between the result and that of an undisturbed run."""
        if problem:
            result.problems.append(f"the undisturbed job: {problem}")
            return
        result.undisturbed, result.auc_undisturbed = undisturbed, _auc(undisturbed)
        if isinstance(self.run.mode, SyncMode) and self.run.cluster.nn_workers == 1:
            result.same_model = _same_model(self.run, result.run_dir, undisturbed)
        if result.same_model is False:
            result.problems.append("the model is not that of the undisturbed run, as it is in sync mode")


def _auc(run_dir: Path) -> dict[str, float | None]:
    history = read_history(run_dir)
    labels = [label for label, link in history.links.items() if link == "logistic"]
    return {label: history.metric(line, "auc", label) for line in history.evaluations[-1:] for label in labels}


def _same_model(run: Run, one: Path, other: Path) -> bool | None:
    """Return True if the last checkpoints of two runs have the same rows and weights; None if one has none."""
    if run.checkpoint.path is not None or not run.checkpoint.at_end:
        return None
    found = [newest_of(checkpoints_of(each, None)) for each in (one, other)]
    if found[0] is None or found[1] is None:
        return None
    try:
        return _is_same(compare_checkpoints(found[0], found[1]))
    except CheckpointError:
        return False


def _is_same(diff: Diff) -> bool:
    rows = all(not (t.added or t.removed or t.changed or t.touched or t.note) for t in diff.tables)
    dense = all(not weights.note and weights.change == 0.0 for weights in diff.dense)
    return rows and dense and diff.steps[0] == diff.steps[1]

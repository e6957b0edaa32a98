"""Whole drills: a fresh job to its end, with an undisturbed one to compare it with, or a job that runs already."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from persia_cli.checkpoint.comparison import Diff, compare_checkpoints
from persia_cli.config.schema import Run, SyncMode
from persia_cli.disk import writing
from persia_cli.drill.counting import count_updates, measure_times, messages_refused
from persia_cli.drill.exercise import Exercise
from persia_cli.drill.job import DrilledJob
from persia_cli.drill.plan import Disturbance
from persia_cli.drill.result import DrillResult, StrikeResult
from persia_cli.errors import CheckpointError, RoleError
from persia_cli.launch.job import JOB
from persia_cli.launch.resumed import newest_of
from persia_cli.launch.role import read_job
from persia_cli.launch.signals import terminating_interrupts
from persia_cli.observe.history import read_history
from persia_cli.store.checkpoints.manifest import checkpoints_of

DRILLED, UNDISTURBED = "drilled", "undisturbed"
"""Folders of the two runs of a drill."""


@dataclass(frozen=True)
class DrillOrder:
    """What to drill: a run, the words that configure it, and the disturbances. `steps` is 0 if that is not known."""

    run: Run
    words: Sequence[str]
    replicas: Sequence[str]
    steps: int
    disturbances: Sequence[Disturbance]
    limit_s: float
    follow: Callable[[int, str], None]
    on_result: Callable[[StrikeResult], None]

    def exercise(self, job: DrilledJob) -> Exercise:
        """Return the order for a job."""
        return Exercise(job, self.words, self.limit_s, self.follow, self.on_result)


def drill_fresh(order: DrillOrder, folder: Path, compare: bool) -> DrillResult:
    """Start a job in a folder, disturb it, and let it end; then the same job undisturbed, if it is to be compared.

    Raises UserError for a drill that is not possible. No process outlives this call.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    job = DrilledJob(folder / DRILLED, order.replicas, log=folder / f"{DRILLED}.log")
    with terminating_interrupts():
        try:
            job.start(order.words)
            result = _drilled(order, job)
        finally:
            job.end()
        if compare and not result.problems:
            _compare(order, result, folder)
    return result


def drill_running(order: DrillOrder, job: DrilledJob) -> DrillResult:
    """Disturb a job that runs already, which goes on after that; raises UserError for a drill that is not possible."""
    with terminating_interrupts():
        try:
            return _drilled(order, job)
        finally:
            job.end()


def _drilled(order: DrillOrder, job: DrilledJob) -> DrillResult:
    exercise = order.exercise(job)
    problem = ""
    exercise.wait_for_begin()
    try:
        exercise.carry_out(order.disturbances)
        if job.is_ours and not any(each.problem for each in exercise.results):
            exercise.until(lambda: job.ended, "the job to end", or_end=True, while_it_moves=True)
            problem = job.outcome()
    except RoleError as error:
        problem = str(error)
    return _counted(order, job, exercise.results, problem)


def _counted(order: DrillOrder, job: DrilledJob, strikes: list[StrikeResult], problem: str) -> DrillResult:
    history, run = read_history(job.run_dir), order.run
    last = max((line["step"] for line in history.training), default=0)
    for strike in strikes:
        measure_times(strike, history.training)
    # In sync mode the gradients of all ranks are one update.
    of_step = 1 if isinstance(run.mode, SyncMode) else run.cluster.nn_workers
    expected = (last - read_job(job.run_dir / JOB).first_step) * of_step
    result = DrillResult(
        run_dir=job.run_dir,
        mode=run.mode.kind,
        steps=last,
        strikes=strikes,
        counts=count_updates(history.events, expected) if job.ended and not problem else None,
        samples_repeated=sum(map(_steps_again, strikes)) * run.train.batch_size,
        auc=_auc(job.run_dir) if job.ended else {},
    )
    result.problems = [f"{each.disturbance.label}: {each.problem}" for each in strikes if each.problem]
    if problem:
        result.problems.append(problem)
    judge(result)
    if not any(each.disturbance.kind in ("kill", "node") for each in strikes):  # counters end with their process
        result.problems += _accepted(result, history.events)
    return result


def _accepted(result: DrillResult, events: Sequence[dict[str, Any]]) -> list[str]:
    """Return sentences about replicas that have refused fewer messages than the damaged ones that they got."""
    sent: Counter[str] = Counter()
    for each in result.strikes:
        for name in each.disturbance.targets if each.damaged else ():
            sent[name] += each.damaged
    refused = {name: messages_refused(events, name) for name in sent}
    return [
        f"{name} got {sent[name]} damaged messages and refused {times}"
        for name, times in refused.items()
        if times is not None and times < sent[name]
    ]


def _steps_again(strike: StrikeResult) -> int:
    """Return how many steps were trained again after a disturbance, as the job said."""
    return strike.repeated.get("training steps", 0) + (strike.repeated.get("steps", 0) if strike.went_back else 0)


def judge(result: DrillResult) -> None:
    """Note what is not as the table of failures promises: updates that are lost or applied twice."""
    if (counts := result.counts) is None:
        return
    if counts.twice:
        result.problems.append(f"{counts.twice:,} updates are in the model more than once")
    if counts.lost:
        result.problems.append(f"{counts.lost:,} updates were lost")


def _compare(order: DrillOrder, result: DrillResult, folder: Path) -> None:
    """Run the same job undisturbed, and note how its result differs."""
    job = DrilledJob(folder / UNDISTURBED, order.replicas, log=folder / f"{UNDISTURBED}.log")
    try:
        job.start(order.words)
        order.exercise(job).until(lambda: job.ended, "the undisturbed job", or_end=True, while_it_moves=True)
        if problem := job.outcome():
            result.problems.append(f"the undisturbed job: {problem}")
            return
    finally:
        job.end()
    result.undisturbed = job.run_dir
    result.auc_undisturbed = _auc(job.run_dir)
    if isinstance(order.run.mode, SyncMode) and order.run.cluster.nn_workers == 1:
        result.same_model = _same_model(order.run, result.run_dir, job.run_dir)
    if result.same_model is False:
        result.problems.append("the model is not that of the undisturbed run, as it is in sync mode")


def _auc(run_dir: Path) -> dict[str, float | None]:
    history = read_history(run_dir)
    labels = [label for label, link in history.links.items() if link == "logistic"]
    return {label: history.figure(line, "auc", label) for line in history.evaluations[-1:] for label in labels}


def _same_model(run: Run, one: Path, other: Path) -> bool | None:
    """Return whether the last checkpoints of two runs have the same rows and weights; None if one has none."""
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

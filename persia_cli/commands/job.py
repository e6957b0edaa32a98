"""A job of the command line: planned for a saved model, run with its progress on the screen, traced."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from persia_cli.commands.describe import describe, warn_of_slow_precision, warn_of_spent_schedules, warn_of_stand_in
from persia_cli.commands.facts import facts_of
from persia_cli.commands.progress import following
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import err, labelled, say
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.config.schema.base import MOST
from persia_cli.config.words import quoted
from persia_cli.disk import claim_folder
from persia_cli.errors import PreemptedError, UserError, count
from persia_cli.launch.job import JobResult, require_free, timed
from persia_cli.launch.readiness import require_ready
from persia_cli.launch.rollback import launch_with_rollback
from persia_cli.launch.signals import PreemptedNow
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.observe.recordings import join_recordings, remove_recordings
from persia_cli.observe.saved_run import SavedModel
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import COORDINATOR, Job, JobPlan, Replica, Task, plan_job
from persia_cli.plan.saved_model import require_room, require_saved_model
from persia_cli.store.manifest import checkpoint_folder, checkpoints_of, finished_steps, read_manifest

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""

FOLDERS: dict[Task, str] = {"evaluate": "evals", "predict": "predictions"}
"""The folder in a run directory for each task with its model."""
DOING: dict[Task, str] = {"evaluate": "evaluating", "predict": "predicting"}
WARM_UP = 20
"""Number of steps that are skipped by default, until buffers and caches are filled."""
STEPS = 200


def carry_out(plan: JobPlan, words: Sequence[str], trace: Path | None = None) -> None:
    """Run the job to its end and print its results; `words` are the user's, for the proposed commands.

    The replicas' traces are joined into the file `trace`, even if the job fails.
    """
    if plan.run.cluster.kind == "embedded":
        from persia_cli.launch.embedded import launch
    elif plan.run.cluster.kind == "ray" and plan.job.task == "train":
        from persia_cli.engines.ray.launch import launch
    else:
        from persia_cli.launch.local import launch
    describe(err(), plan)
    warn_of_stand_in(err(), plan, words)
    if plan.job.task == "train":
        warn_of_slow_precision(plan.run)
        warn_of_spent_schedules(plan)

    def follow_job(plan: JobPlan) -> JobResult:
        with following(err(), plan.run_dir, plan.job, plan.run.train.batch_size) as follow:
            return launch(plan, follow)

    try:
        result = launch_with_rollback(plan, follow_job, lambda text: labelled(err(), "rollback", text))
        show_results(plan, result, words)
    except (PreemptedError, PreemptedNow) as ended:
        say(err(), f"{ended}: everything is stopped; {going_on(plan, words)}")
        raise typer.Exit(PreemptedError.exit_code) from None
    except KeyboardInterrupt:
        say(err(), f"interrupted; everything is stopped; {_kept(plan)}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if trace:
            leave_trace(err(), plan.run_dir, plan.job, plan.replicas, trace)
            remove_recordings(plan.run_dir)


def claimed(plan: JobPlan) -> JobPlan:
    """Return the plan with its run directory created, with a number in its name if another job has that name."""
    return replace(plan, job=replace(plan.job, run_dir=str(claim_folder(plan.run_dir))))


def choose_run_dir(name: str, chosen: Path | None) -> Path:
    """Return the run directory, by default named after the time; raises UserError if the chosen one is not free."""
    if chosen is None:
        return timed(Path("runs"), f"{name}-")
    require_free(chosen)
    return chosen


def _kept(plan: JobPlan) -> str:
    """Return in words what an interrupted job leaves."""
    if plan.job.task == "predict":
        return f"no scores are written to {plan.job.output}"
    if plan.job.task == "evaluate":
        return "the model is unchanged"
    checkpoints = checkpoints_of(plan.run_dir, plan.run.checkpoint.path)
    if steps := finished_steps(checkpoints):
        kept = checkpoint_folder(checkpoints, steps[-1])
        return f"the model of step {steps[-1]:,} is kept in {kept}; persia resume {plan.run_dir} goes on from there"
    return (
        "the model is lost, since nothing was saved yet (checkpoint.every_steps saves during training); "
        f"{plan.run_dir} keeps the metrics"
    )


def going_on(plan: JobPlan, words: Sequence[str]) -> str:
    """Return in words what goes on with a job that a signal has ended, and what that does again."""
    if plan.job.task != "train":
        return f"{_kept(plan)}; the same command begins again"
    run_dir = shlex.quote(str(plan.run_dir))
    trained = _trained(plan.run_dir)
    checkpoints = checkpoints_of(plan.run_dir, plan.run.checkpoint.path)
    steps = finished_steps(checkpoints)
    if not steps and plan.is_resumed:
        return "nothing was saved yet; the same command with another --run-dir begins again"
    if not steps:
        again = shlex.join(["persia", "train", *words, "resume=auto", "--run-dir", str(plan.run_dir)])
        over = f", with the {count(trained, 'step')} that were trained" if trained else ""
        return f"nothing was saved yet; {again} begins again{over}"
    lost = max(trained - steps[-1], 0)
    repeats = f" and trains {count(lost, 'step')} again" if lost else ""
    saved = f"the model of step {steps[-1]:,} is saved in {checkpoint_folder(checkpoints, steps[-1])}"
    return f"{saved}; persia resume {run_dir} goes on from there{repeats}"


def _trained(run_dir: Path) -> int:
    """Return how many steps were trained, as the record of a run that was stopped says."""
    ends = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "stopped"]
    return int(ends[-1].get("step", 0)) if ends else 0


def plan_saved(model: SavedModel, task: Task, words: Sequence[str], without: Sequence[str] = ()) -> JobPlan:
    """Plan a job by the run's configuration and the words that change it; `without` are words that remove keys.

    Raises UserError for settings that change the model or leave too little memory, and for those that the machine
    does not support.
    """
    run = compose_run([f"conf={model.config}", *words, *without])
    require_saved_model(model.run, run, DOING[task], tuple(word.partition("=")[0] for word in without))
    require_room(read_manifest(model.checkpoint).tables, embedding_layout(run))
    place = timed(model.run_dir / FOLDERS[task])
    plan = plan_job(run, facts_of(run.dataset), task, place, model.checkpoint)
    require_ready([plan])
    return plan


def other_data(paths: Sequence[str], split: str) -> list[str]:
    """Return the words that replace the training's files by others, with one kind of split for all of them."""
    return [
        f"dataset.path=[{','.join(map(quoted, paths))}]",
        "dataset.if_missing=error",
        "dataset.recipe=null",  # The recipe makes the training data, and the source has it, not these files.
        "dataset.source=null",
        f"dataset.split={{kind: {split}}}",
    ]


def trace_window(words: str | None, steps: int) -> tuple[int, int]:
    """Return the steps [first, last) that `FIRST:LAST` names, by default 200 after the first 20 (a tenth, if fewer).

    Raises UserError for other words, and for steps that a training of `steps` steps does not have.
    """
    if words is None:
        first = min(WARM_UP, steps // 10)
        return first, min(first + STEPS, steps)
    found = re.fullmatch(r"(\d+):(\d+)", words)
    if found is None or int(found[1]) >= int(found[2]):
        raise UserError(f"--trace-steps={words}: expected FIRST:LAST with FIRST below LAST, such as 20:220")
    first, last = int(found[1]), min(int(found[2]), steps)
    if first >= last:
        raise UserError(f"--trace-steps={words}: the training has the steps 0 to {steps - 1} only")
    return first, last


def traced(plan: JobPlan, path: Path, steps: str | None) -> JobPlan:
    """Return the job's plan with these steps traced; raises UserError for steps or a file that cannot be."""
    require_file(path)
    first, last = trace_window(steps, plan.job.steps)
    return replace(plan, job=replace(plan.job, trace_first=first, trace_last=last))


def traced_elsewhere(run: Run, path: Path, steps: str | None) -> Run:
    """Return the same for a run whose number of steps is known where it will run, as an instruction to its roles."""
    require_file(path)
    window = trace_window(steps, MOST) if steps else (WARM_UP, WARM_UP + STEPS)
    return run.model_copy(update={"train": run.train.model_copy(update={"trace_steps": window})})


def require_file(path: Path) -> None:
    """Raise UserError for a path at which no file can be."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--trace={path}: this is not a file in a folder that exists")


def leave_trace(console: Console, run_dir: Path, job: Job, replicas: Sequence[Replica], path: Path) -> None:
    """Join the recordings of a run's roles into one file; report what is missing, and how to open the file."""
    names = [replica.name for replica in replicas if replica.role != COORDINATOR]
    try:
        joined = join_recordings(run_dir, names, path)
    except OSError as error:
        labelled(console, "trace", f"cannot be written to {path}: {error.strerror}")
        return
    if not joined.spans:
        labelled(console, "trace", f"none: the job ended before step {job.trace_first}")
        return
    window = f"steps {job.trace_first} to {job.trace_last - 1}"
    labelled(console, "trace", f"{path}: {window}, {count(joined.spans, 'span')}; open it at https://ui.perfetto.dev")
    if joined.dropped:
        lost = f"{count(joined.dropped, 'span')} did not fit; trace fewer steps with --trace-steps"
        labelled(console, "", lost)
    if joined.missing:
        labelled(console, "", f"without {', '.join(joined.missing)}: killed, or without work in these steps")
    if joined.partial:
        partial = ", ".join(joined.partial)
        labelled(console, "", f"in part {partial}: a process was killed, or cut off, before all was written")

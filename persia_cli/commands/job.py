"""A job of the command line: planned for a saved model, run with its progress on the screen, traced."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from persia_cli.commands.describe import describe, warn_of_slow_precision, warn_of_spent_schedules
from persia_cli.commands.endings import ROLLBACK, ended_in_words
from persia_cli.commands.facts import facts_of
from persia_cli.commands.progress import following
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import err, labelled
from persia_cli.config.compose import compose_run
from persia_cli.config.overrides import quoted
from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.config.schema.base import MOST
from persia_cli.disk import claim_folder
from persia_cli.engines.driver_process import forget_driver
from persia_cli.engines.engine import engine_here, engine_of
from persia_cli.engines.job import JobResult, require_free, timed
from persia_cli.engines.readiness import require_ready
from persia_cli.engines.rollback import launch_with_rollback
from persia_cli.errors import UserError, count
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.observe.recordings import join_recordings, remove_recordings
from persia_cli.observe.saved_run import SavedModel, find_model
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import COORDINATOR, Job, JobPlan, Replica, Task, plan_job
from persia_cli.plan.saved_model import require_same_widths, require_saved_model, require_space
from persia_cli.plan.split_line import split_line
from persia_cli.store.checkpoints.manifest import checkpoints_of, finished_steps, read_manifest

FOLDERS: dict[Task, str] = {"evaluate": "evals", "predict": "predictions"}
"""The folder in a run directory for each task with its model."""
DOING: dict[Task, str] = {"evaluate": "evaluating", "predict": "predicting"}
WARM_UP = 20
"""Number of steps that are skipped by default, until buffers and caches are filled."""
STEPS = 200


def carry_out(
    plan: JobPlan,
    words: Sequence[str],
    trace: Path | None = None,
    shows_plan: bool = True,
    as_json: bool = False,
) -> None:
    """Run the job to its end and print its results; `words` are the user's, for the proposed commands.

    The replicas' traces are joined into the file `trace`, even if the job fails. `as_json` is of an evaluation.
    """
    cluster = plan.run.cluster
    engine = engine_of(cluster) if plan.job.task == "train" else engine_here(cluster)
    if plan.job.task == "train" and not cluster.is_spread:
        forget_driver(plan.run_dir)
    if shows_plan:
        describe(err(), plan)
    if plan.job.task == "train":
        warn_of_slow_precision(plan.run)
        warn_of_spent_schedules(plan)

    def follow_job(plan: JobPlan) -> JobResult:
        with following(err(), plan.run_dir, plan.job, plan.run.train.batch) as follow:
            return engine.launch(plan, follow)

    try:
        with ended_in_words(plan, words):
            result = launch_with_rollback(plan, follow_job, lambda text: labelled(err(), ROLLBACK, text))
            show_results(plan, result, as_json)
    finally:
        if trace:
            take_trace(plan, trace)


def claimed(plan: JobPlan) -> JobPlan:
    """Return the plan with its run directory created, with a number in its name if another job has that name."""
    return replace(plan, job=replace(plan.job, run_dir=str(claim_folder(plan.run_dir))))


def choose_run_dir(name: str, chosen: Path | None) -> Path:
    """Return the run directory, by default named after the time; raises UserError if the chosen one is not free."""
    if chosen is None:
        return timed(Path("runs"), f"{name}-")
    require_free(chosen)
    return chosen


def plan_saved(
    model: SavedModel, task: Task, words: Sequence[str], without: Sequence[str] = (), test: bool = False
) -> JobPlan:
    """Plan a job by the run's configuration and the settings that change it; `without` are settings that remove keys.

    With `test` the samples that the split sets aside for a test take the place of the evaluation's.

    Raises UserError for settings that change the model or leave too little memory, and for those that the machine does
    not support.
    """
    run = compose_run([f"conf={model.config}", *words, *without])
    if test:
        run = _on_test(run)
    require_saved_model(model.run, run, DOING[task], tuple(word.partition("=")[0] for word in without))
    servers = run.cluster.embedding_servers
    require_space(read_manifest(model.checkpoint).tables, embedding_layout(run), servers)
    place = timed(model.run_dir / FOLDERS[task])
    facts = facts_of(run.dataset)
    if facts.settled is not None:
        require_same_widths(model.run, facts.settled)
    plan = plan_job(run, facts, task, place, model.checkpoint)
    if test:
        plan = replace(plan, job=replace(plan.job, scored_part="test"))
    require_ready([plan])
    return plan


def _on_test(run: Run) -> Run:
    """Return the run with its test samples as evaluation samples; raises UserError if there are none."""
    split = run.dataset.split.of_test() if isinstance(run.dataset, ParquetDataset) else None
    if split is None:
        raise UserError(
            "dataset.split sets no samples aside for a test, and they must not be trained on: give it some and train "
            f"again{split_line(run, 'test')}"
        )
    return run.model_copy(update={"dataset": run.dataset.model_copy(update={"split": split})})


def score_test(trained: JobPlan) -> None:
    """Score the test samples of a training that has ended with its best model, if its split sets any aside.

    The results become a line of the run's metrics, with the split `test`, and an evaluation of the run.
    """
    dataset = trained.run.dataset
    if trained.job.task != "train" or not isinstance(dataset, ParquetDataset) or dataset.split.of_test() is None:
        return
    if not finished_steps(checkpoints_of(trained.run_dir, trained.run.checkpoint.path)):
        labelled(err(), "test", "no model was saved, so the test samples are not scored")
        return
    model = find_model(trained.run_dir)
    plan = claimed(plan_saved(model, "evaluate", [], test=True))
    labelled(err(), "test", f"scoring {count(plan.job.eval_rows, 'test sample')} with {model.checkpoint}")
    carry_out(plan, [f"conf={model.config}"], shows_plan=False)
    with (trained.run_dir / METRICS).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in read_journal(plan.run_dir / METRICS))
    if trained.run.loggers:
        from persia_cli.loggers.process import send_rest

        for text in send_rest(trained.run_dir):
            labelled(err(), "warning", text)


def other_data(paths: Sequence[str], split: str) -> list[str]:
    """Return the settings that replace the training's files by others, with one kind of split for all of them."""
    return [
        f"dataset.path=[{','.join(map(quoted, paths))}]",
        "dataset.generator=null",
        "dataset.recipe=null",  # It makes the training data, not these files.
        f"dataset.split={{kind: {split}}}",
    ]


def trace_window(words: str | None, steps: int) -> tuple[int, int]:
    """Return the steps [first, last) that `FIRST:LAST` names, by default 200 after the first 20 (a tenth, if fewer).

    Raises UserError for other text, and for steps that a training of `steps` steps does not have.
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


def take_trace(plan: JobPlan, path: Path) -> None:
    """Join the recordings of a job that has ended into one file, and remove them."""
    leave_trace(err(), plan.run_dir, plan.job, plan.replicas, path)
    remove_recordings(plan.run_dir)


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

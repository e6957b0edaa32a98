"""A job that this process drives: run to its end, over rollbacks, and what is kept of one that a signal ends."""

import json
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from persia_cli.config.schema import ParquetDataset
from persia_cli.engines.driver_process import INTERRUPTED
from persia_cli.engines.engine import engine_here, engine_of
from persia_cli.engines.job import JobResult
from persia_cli.engines.rollback import launch_with_rollback
from persia_cli.engines.signals import PreemptedNow
from persia_cli.errors import OrderlyEndError, PreemptedError, count
from persia_cli.jobs.plan import plan_saved
from persia_cli.jobs.reporter import Reporter
from persia_cli.jobs.run_dirs import claimed
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.observe.saved_run import find_model
from persia_cli.plan.job import JobPlan
from persia_cli.storage.addresses import printable
from persia_cli.store.checkpoints.manifest import checkpoint_folder, checkpoints_of, finished_steps

ROLLBACK = "rollback"
"""Label of a sentence about a job that goes back to a checkpoint."""


def run_job(plan: JobPlan, arguments: Sequence[str], reporter: Reporter) -> JobResult:
    """Run a job to its end; `arguments` are those of its command, for the text on how to continue.

    Raises OrderlyEndError if a signal or Ctrl-C ends it, and the error of a job that fails.
    """
    cluster = plan.run.cluster
    engine = engine_of(cluster) if plan.job.task == "train" else engine_here(cluster)

    def launch_and_follow(plan: JobPlan) -> JobResult:
        with reporter.following(plan.run_dir, plan.job, plan.run.train.batch) as follow:
            return engine.launch(plan, follow)

    try:
        return launch_with_rollback(plan, launch_and_follow, partial(reporter.labelled, ROLLBACK))
    except (PreemptedError, PreemptedNow) as ended:
        text = f"{ended}: everything is stopped; {_how_to_continue(plan, arguments)}"
        raise OrderlyEndError(text, PreemptedError.exit_code) from None
    except KeyboardInterrupt:
        raise OrderlyEndError(f"interrupted; everything is stopped; {_kept(plan)}", INTERRUPTED) from None


def launch_unseen(plan: JobPlan, reporter: Reporter) -> JobResult:
    """Run a job to its end without following it: another command shows it; raises how it ended."""
    engine = engine_of(plan.run.cluster)
    return launch_with_rollback(
        plan, lambda plan: engine.launch(plan, lambda: None), partial(reporter.labelled, ROLLBACK)
    )


def plan_test(trained: JobPlan, reporter: Reporter) -> JobPlan | None:
    """Plan the scoring of a training's test samples with its best model; None if its split sets none aside."""
    dataset = trained.run.dataset
    if trained.job.task != "train" or not isinstance(dataset, ParquetDataset) or dataset.split.of_test() is None:
        return None
    if not finished_steps(checkpoints_of(trained.run_dir, trained.run.checkpoint.path)):
        reporter.labelled("test", "no model was saved, so the test samples are not scored")
        return None
    model = find_model(trained.run_dir)
    plan = claimed(plan_saved(model, "evaluate", [], test=True, reporter=reporter))
    reporter.labelled("test", f"scoring {count(plan.job.eval_rows, 'test sample')} with {model.checkpoint}")
    return plan


def keep_test_metrics(trained: JobPlan, test: JobPlan, reporter: Reporter) -> None:
    """Append the metrics of the test samples to those of the training, with the split `test`."""
    with (trained.run_dir / METRICS).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in read_journal(test.run_dir / METRICS))
    if trained.run.loggers:
        from persia_cli.loggers.process import send_rest

        for text in send_rest(trained.run_dir):
            reporter.labelled("warning", text)


def _kept(plan: JobPlan) -> str:
    """Return as text what an interrupted job leaves."""
    if plan.job.task == "predict":
        return f"no scores are written to {plan.job.output}"
    if plan.job.task == "evaluate":
        return "the model is unchanged"
    checkpoints = checkpoints_of(plan.run_dir, plan.run.checkpoint.path)
    if steps := finished_steps(checkpoints):
        kept = checkpoint_folder(checkpoints, steps[-1])
        return f"the model of step {steps[-1]:,} is kept in {kept}; persia resume {plan.run_dir} goes on from there"
    if plan.is_resumed:
        return f"nothing was saved since; persia resume {plan.run_dir} goes on from {plan.job.load}"
    return (
        "the model is lost, since nothing was saved yet (checkpoint.every_steps saves during training); "
        f"{plan.run_dir} keeps the metrics"
    )


def _how_to_continue(plan: JobPlan, arguments: Sequence[str]) -> str:
    """Return as text how to continue a job that a signal has ended, and what that repeats."""
    if plan.job.task != "train":
        return f"{_kept(plan)}; the same command begins again"
    run_dir = shlex.quote(str(plan.run_dir))
    trained = _trained_steps(plan.run_dir)
    checkpoints = checkpoints_of(plan.run_dir, plan.run.checkpoint.path)
    steps = finished_steps(checkpoints)
    if plan.is_resumed and (not steps or steps[-1] < plan.job.first_step):
        repeated = trained - plan.job.first_step
        again = f" and trains {count(repeated, 'step')} again" if repeated > 0 else ""
        return f"nothing was saved since; persia resume {run_dir} goes on from {plan.job.load}{again}"
    if not steps:
        command = ["persia", "train", *map(printable, arguments), "resume=auto", "--run-dir", str(plan.run_dir)]
        over = f", with the {count(trained, 'step')} that were trained" if trained else ""
        return f"nothing was saved yet; {shlex.join(command)} begins again{over}"
    lost = max(trained - steps[-1], 0)
    repeats = f" and trains {count(lost, 'step')} again" if lost else ""
    saved = f"the model of step {steps[-1]:,} is saved in {checkpoint_folder(checkpoints, steps[-1])}"
    return f"{saved}; persia resume {run_dir} goes on from there{repeats}"


def _trained_steps(run_dir: Path) -> int:
    """Return how many steps were trained, by the record of a run that was stopped."""
    ends = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "stopped"]
    return int(ends[-1].get("step", 0)) if ends else 0

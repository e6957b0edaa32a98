"""A job on the screen: it is trained, and its results are printed."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from persia_cli.commands.options import OUTPUT
from persia_cli.commands.plan_view import (
    describe_dry_run,
    describe_job,
    warn_of_slow_precision,
    warn_of_spent_schedules,
)
from persia_cli.commands.progress import SCREEN, training_parts
from persia_cli.commands.screen import err, labelled, out, propose, say_json, size
from persia_cli.commands.tables import columns, print_table
from persia_cli.engines.engine import engine_of
from persia_cli.engines.job import JobResult
from persia_cli.engines.key_files import require_given_keys
from persia_cli.engines.signals import end_on_signals
from persia_cli.errors import UserError
from persia_cli.jobs.result import JobSummary, Line, scores_of, summary_of, unknown_ids
from persia_cli.jobs.run import keep_test_metrics, plan_test, run_job
from persia_cli.jobs.submit import train_elsewhere
from persia_cli.jobs.trace import take_trace, traced
from persia_cli.jobs.training import begun, plan_request, requested
from persia_cli.metric import is_of_retrieval
from persia_cli.observe.history import QUALITY
from persia_cli.observe.outcome import correction
from persia_cli.plan.job import JobPlan


def train_and_show(
    arguments: Sequence[str],
    folders: Sequence[Path],
    run_dir: str | None = None,
    dry_run: bool = False,
    render: bool = False,
    trace: Path | None = None,
    trace_steps: str | None = None,
    is_point: bool = False,
) -> None:
    """Train as `persia train` does with these arguments and options; `is_point` is a point of a sweep."""
    with end_on_signals(SCREEN.say), requested(arguments, folders, run_dir, SCREEN) as request:
        if trace_steps and not trace:
            raise UserError("--trace-steps selects the steps that --trace FILE traces; give --trace too")
        if trace and render:
            raise UserError("--trace is not for --render: train.trace_steps=[20,220] records, and persia trace joins")
        if render or request.runs_elsewhere(dry_run, is_point):
            request = request.traced(trace, trace_steps) if trace else request
            request.require_new()
            if dry_run:
                require_given_keys(request.run.cluster)
            if render or dry_run:
                out().out(engine_of(request.run.cluster).rendered(request.run, request.run_dir), highlight=False)
            else:
                show_results(*train_elsewhere(request, SCREEN, trace))
            return
        plan = plan_request(request, is_point, SCREEN)
        plan = traced(plan, trace, trace_steps) if trace else plan
        if dry_run:
            describe_dry_run(plan, request.arguments, run_dir)
            return
        with begun(plan, request, SCREEN) as plan:
            carry_out(plan, request.arguments, trace)
            if not is_point:  # points of a sweep are compared by their evaluations
                score_test(plan)


def carry_out(
    plan: JobPlan,
    arguments: Sequence[str] = (),
    trace: Path | None = None,
    shows_plan: bool = True,
    as_json: bool = False,
) -> None:
    """Run the job to its end and print its results; `arguments` are those of a training, which may continue it.

    The replicas' traces are joined into the file `trace`, even if the job fails. `as_json` is of an evaluation.
    """
    if shows_plan:
        describe_job(err(), plan)
    if plan.job.task == "train":
        warn_of_slow_precision(plan.run)
        warn_of_spent_schedules(plan)
    try:
        show_results(plan, run_job(plan, arguments, SCREEN), as_json)
    finally:
        if trace:
            take_trace(plan.run_dir, plan.job, plan.replicas, trace, SCREEN)


def score_test(trained: JobPlan) -> None:
    """Score the test samples of a training that has ended with its best model, if its split sets any aside.

    The results become a line of the run's metrics, with the split `test`, and an evaluation of the run.
    """
    if (plan := plan_test(trained, SCREEN)) is not None:
        carry_out(plan, shows_plan=False)
        keep_test_metrics(trained, plan, SCREEN)


def show_results(plan: JobPlan, result: JobResult, as_json: bool = False) -> None:
    """Print the best evaluation, else the last, and after training the saved files and the next command."""
    if plan.job.task == "predict":
        _show_scores(out(), scores_of(result))
        if text := unknown_ids(result.events):
            labelled(err(), "unknown", text)
        labelled(err(), "saved", str(plan.job.output).removeprefix(f"{Path.cwd()}/"))
        propose(err(), f"persia export {shlex.quote(str(plan.run_dir.parents[1]))} -o {shlex.quote(plan.run.name)}")
        return
    summary = summary_of(plan, result)
    if plan.facts.stand_in:
        labelled(err(), "data", plan.facts.source)
    if summary.evaluation and as_json:
        say_json({key: value for key, value in summary.evaluation.items() if key != "time"})
    elif summary.evaluation:
        show_evaluation(out(), summary.evaluation, plan)
    elif summary.training:
        labelled(out(), "trained", "  ".join(training_parts(summary.training)[:-1]))
    for label in summary.corrections:
        of = "" if len(plan.run.dataset.label_names) == 1 else f"{label['label']} "
        labelled(err(), "calibrated", f"{of}by {correction(label)}")
    for text in summary.notes:
        labelled(err(), "note", text)
    if summary.lost:
        labelled(err(), "tables", summary.lost)
    if OUTPUT.verbose:
        _show_details(summary)
    if summary.best:
        labelled(err(), "best", str(summary.best))
    labelled(err(), "metrics", str(result.run_dir / "metrics.jsonl"))
    if summary.advice:
        labelled(err(), "advice", summary.advice)
    if summary.next_command:
        propose(err(), summary.next_command)


def _show_details(summary: JobSummary) -> None:
    """Print the ids without rows, and the bytes between roles."""
    if summary.unknown:
        labelled(err(), "unknown", summary.unknown)
    links = [
        f"{link.link} {size(link.total)}" + (f" ({link.shared:.0%} in shared memory)" if link.shared else "")
        for link in summary.traffic
    ]
    if links:
        labelled(err(), "wire", f"{', '.join(links)} per sample")


def show_evaluation(console: Console, line: Line, plan: JobPlan) -> None:
    """Print the metrics of an evaluation, the last or the best of the job."""
    suffixes = [key.removeprefix(first) for first in ("auc", "rmse") for key in line if key.startswith(first)]
    metrics = {key: title for key, title in QUALITY.items() if any(key + suffix in line for suffix in suffixes)}
    kind = "test " if line.get("split") == "test" else ""
    samples = line.get("eval_samples", plan.facts.eval_rows)  # a portion's, if data grows
    table = columns(f"{samples:,} {kind}samples", *metrics.values())
    best = f"best by {line['best_by']}, step {line['step']:,}" if "best_by" in line else ""
    calibrated = "calibrated" if line.get("calibrated") else ""
    for suffix in suffixes:
        name = "  ".join(part for part in (suffix.lstrip("_"), best, calibrated) if part)
        table.add_row(name, *(_number(line[key + suffix]) if key + suffix in line else "" for key in metrics))
    print_table(console, table)
    if keys := [key for key in line if is_of_retrieval(key)]:
        ranked = columns("all items ranked", *keys)
        ranked.add_row(best or f"step {line['step']:,}", *(_number(line.get(key)) for key in keys))
        print_table(console, ranked)


def _show_scores(console: Console, scored: Line) -> None:
    """Print the number of scored samples, and the distribution of each label's probabilities."""
    spread: Mapping[str, Mapping[str, float | None]] = scored["spread"]
    table = columns(f"{scored['rows']:,} samples scored", *next(iter(spread.values())))
    for label, line in spread.items():
        table.add_row(label, *map(_number, line.values()))
    print_table(console, table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"

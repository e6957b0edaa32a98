"""The trace of a job on the command line: the steps to trace, the file, and the way to open it."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from persia_cli.commands.screen import count, labelled
from persia_cli.errors import UserError
from persia_cli.observe.trace_file import join_trace
from persia_cli.plan.job import JobPlan
from persia_cli.plan.trace import trace_window


def traced(plan: JobPlan, path: Path, steps: str | None) -> JobPlan:
    """Return the job's plan with these steps traced; raises UserError for steps or a file that cannot be."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--trace={path}: this is not a file in a folder that exists")
    first, last = trace_window(steps, plan.job.steps)
    return replace(plan, job=replace(plan.job, trace_first=first, trace_last=last))


def leave_trace(console: Console, plan: JobPlan, path: Path) -> None:
    """Join the replicas' recordings into one file; report missing ones, and how to open the file."""
    replicas = [replica.name for replica in plan.replicas if replica.role != "coordinator"]
    try:
        joined = join_trace(plan.run_dir, replicas, path)
    except OSError as error:
        labelled(console, "trace", f"cannot be written to {path}: {error.strerror}")
        return
    if not joined.spans:
        labelled(console, "trace", f"none: the job ended before step {plan.job.trace_first}")
        return
    window = f"steps {plan.job.trace_first} to {plan.job.trace_last - 1}"
    labelled(console, "trace", f"{path}: {window}, {count(joined.spans, 'span')}; open it at https://ui.perfetto.dev")
    if joined.dropped:
        lost = f"{count(joined.dropped, 'span')} did not fit; trace fewer steps with --trace-steps"
        labelled(console, "", lost)
    if joined.missing:
        labelled(console, "", f"without {', '.join(joined.missing)}: killed, or without work in these steps")

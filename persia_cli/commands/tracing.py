"""The trace of a job on the command line: the steps to trace, the file, and the way to open it."""

import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from persia_cli.commands.screen import labelled
from persia_cli.errors import UserError, count
from persia_cli.observe.trace import join_trace
from persia_cli.plan.job import JobPlan

WARM_UP = 20
"""Number of steps that are skipped by default, until buffers and caches are filled."""
STEPS = 200


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

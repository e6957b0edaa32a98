"""Timelines of jobs: which steps are traced, and the file that the recordings of all roles become."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.config.schema.base import MOST
from persia_cli.errors import UserError, count
from persia_cli.jobs.reporter import Reporter
from persia_cli.observe.recordings import join_recordings, remove_recordings
from persia_cli.plan.job import COORDINATOR, Job, JobPlan, Replica

WARM_UP = 20
"""Number of steps that are skipped by default, until buffers and caches are filled."""
STEPS = 200


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


def trace_window(text: str | None, steps: int) -> tuple[int, int]:
    """Return the steps [first, last) that `FIRST:LAST` names, by default 200 after the first 20 (a tenth, if fewer).

    Raises UserError for other text, and for steps that a training of `steps` steps does not have.
    """
    if text is None:
        first = min(WARM_UP, steps // 10)
        return first, min(first + STEPS, steps)
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UserError(f"--trace-steps={text}: expected FIRST:LAST with FIRST below LAST, such as 20:220")
    first, last = int(match[1]), min(int(match[2]), steps)
    if first >= last:
        raise UserError(f"--trace-steps={text}: the training has the steps 0 to {steps - 1} only")
    return first, last


def require_file(path: Path) -> None:
    """Raise UserError for a path at which no file can be."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--trace={path}: this is not a file in a folder that exists")


def take_trace(run_dir: Path, job: Job, replicas: Sequence[Replica], path: Path, reporter: Reporter) -> None:
    """Join the recordings of a job that has ended into one file, and remove them."""
    leave_trace(run_dir, job, replicas, path, reporter)
    remove_recordings(run_dir)


def leave_trace(run_dir: Path, job: Job, replicas: Sequence[Replica], path: Path, reporter: Reporter) -> None:
    """Join the recordings of a run's roles into one file; report what is missing, and how to open the file."""
    names = [replica.name for replica in replicas if replica.role != COORDINATOR]
    try:
        joined = join_recordings(run_dir, names, path)
    except OSError as error:
        reporter.labelled("trace", f"cannot be written to {path}: {error.strerror}")
        return
    if not joined.spans:
        reporter.labelled("trace", f"none: the job ended before step {job.trace_first}")
        return
    window = f"steps {job.trace_first} to {job.trace_last - 1}"
    reporter.labelled("trace", f"{path}: {window}, {count(joined.spans, 'span')}; open it at https://ui.perfetto.dev")
    if joined.dropped:
        reporter.labelled("", f"{count(joined.dropped, 'span')} did not fit; trace fewer steps with --trace-steps")
    if joined.missing:
        reporter.labelled("", f"without {', '.join(joined.missing)}: killed, or without work in these steps")
    if joined.partial:
        partial = ", ".join(joined.partial)
        reporter.labelled("", f"in part {partial}: a process was killed, or cut off, before all was written")

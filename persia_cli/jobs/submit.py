"""Jobs of `persia train` and `persia resume` on other machines: submitted, and followed to their end."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.disk import claim_folder
from persia_cli.engines.engine import engine_of
from persia_cli.engines.job import JobResult
from persia_cli.engines.key_files import require_given_keys
from persia_cli.errors import PersiaError
from persia_cli.jobs.description import model_description, training_description
from persia_cli.jobs.follow import follow_to_end, noting_signals, plan_of
from persia_cli.jobs.plan import AUTO, RESUME
from persia_cli.jobs.reporter import Reporter
from persia_cli.jobs.run_dirs import choose_run_dir, folder_of, new_folder
from persia_cli.jobs.trace import take_trace
from persia_cli.jobs.training import TrainingRequest
from persia_cli.observe.history import CONFIG
from persia_cli.plan.job import JobPlan

GO_ON = [f"{RESUME}{AUTO}"]
"""Arguments of a driver for a run that has begun."""


def train_elsewhere(
    request: TrainingRequest, reporter: Reporter, trace: Path | None = None
) -> tuple[JobPlan, JobResult]:
    """Train on the machines of a run's cluster; return the plan and the result of the job.

    The roles' recordings become the file `trace`.
    """
    run, run_dir = request.run, request.run_dir
    folder = run_dir if request.resumed and run_dir else choose_run_dir(run.name, run_dir)
    if run_dir is None:
        folder = claim_folder(folder)
    try:
        arguments = [f"{RESUME}{request.resumed}"] if request.resumed else []
        return _submit_and_follow(run, folder, arguments, reporter, trace)
    finally:
        with suppress(OSError):  # empty only if the job was refused before it began
            folder.rmdir()


def resume_elsewhere(run: Run, run_dir: Path, reporter: Reporter) -> tuple[JobPlan, JobResult]:
    """Go on with the training of a run on the machines of its cluster, as `train_elsewhere`."""
    return _submit_and_follow(run, run_dir, GO_ON, reporter)


def resume_at_uri(run: Run, uri: str, reporter: Reporter) -> tuple[JobPlan, JobResult]:
    """Go on with the run at a URI on the machines of its cluster; the driver fetches the record."""
    # The first host has the run directory of the run; a command there needs another one.
    is_here = engine_of(run.cluster).record_is_here
    with folder_of(uri, run.name, reporter) if is_here else new_folder(run.name) as folder:
        return _submit_and_follow(run, folder, GO_ON, reporter)


def _submit_and_follow(
    run: Run, run_dir: Path, arguments: Sequence[str], reporter: Reporter, trace: Path | None = None
) -> tuple[JobPlan, JobResult]:
    engine = engine_of(run.cluster)
    require_given_keys(run.cluster)
    reporter.labelled("run", f"{run.name} in {run_dir}")
    reporter.labelled("model", model_description(run))
    reporter.labelled("training", training_description(run))
    with noting_signals() as signals:
        runner = engine.submit(run, run_dir, arguments)
        after = f"persia attach {run_dir} shows it, persia stop {run_dir} ends it"
        reporter.labelled(run.cluster.name, f"{runner}; {after}")
        try:
            return follow_to_end(run_dir, signals, engine.ends_with_command, reporter)
        finally:
            if trace and (run_dir / CONFIG).exists():
                with suppress(PersiaError):  # the job has not begun
                    plan = plan_of(run_dir)
                    take_trace(run_dir, plan.job, plan.replicas, trace, reporter)

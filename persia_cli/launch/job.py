"""What launching has in common, whatever the roles run in: the run directory, the kernels, the result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from persia_cli.config.record import write_run
from persia_cli.config.schema import CustomModel, ParquetDataset, Run
from persia_cli.config.schema.dataset import BUILTIN
from persia_cli.errors import PersiaError, UserError
from persia_cli.observe.journal import EVENTS, METRICS, Journal, read_journal
from persia_cli.plan.job import Job, JobPlan

CONFIG = "config.yaml"
JOB = "job.json"
COORDINATOR_ADDRESS = "coordinator.address"


SWITCH_INTERVAL_S = 1e-4
"""How long a thread may keep the interpreter: the default of 5 ms would be added to every message's round trip."""


SIGNALLED = 128
"""Exit code, less the signal's number, of a process that ended as a signal asked it to."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a finished job went: its lines of metrics and events, in order."""

    run_dir: Path
    metrics: list[dict[str, Any]]
    events: list[dict[str, Any]]


def prepare_run_dir(plan: JobPlan) -> None:
    """Make the run directory and write the resolved run into it; raises UserError if it already holds a run."""
    run_dir = plan.run_dir
    if (run_dir / CONFIG).exists():
        raise UserError(f"{run_dir} already holds a run; choose another --run-dir or remove it")
    try:
        (run_dir / "roles").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the run directory {run_dir}: {error.strerror}; give another --run-dir") from error
    write_run(_anchored(plan.run), run_dir / CONFIG)
    (run_dir / JOB).write_bytes(_anchored_job(plan.job).to_json() + b"\n")


def _anchored(run: Run) -> Run:
    """Return the run with its relative paths made absolute: roles and later commands may run in other folders."""
    dataset, model = run.dataset, run.model
    if isinstance(dataset, ParquetDataset) and "://" not in dataset.path and not dataset.path.startswith(BUILTIN):
        dataset = dataset.model_copy(update={"path": str(Path(dataset.path).expanduser().absolute())})
    if isinstance(model, CustomModel):
        model = model.model_copy(update={"file": str(Path(model.file).expanduser().absolute())})
    return run.model_copy(update={"dataset": dataset, "model": model})


def _anchored_job(job: Job) -> Job:
    return replace(job, run_dir=str(Path(job.run_dir).absolute()), load=job.load and str(Path(job.load).absolute()))


def compile_kernels(run_dir: Path, follow: Callable[[], None]) -> None:
    """Compile the numba kernels, or load them from the cache, once before roles need them.

    Each one done goes to the events, and `follow()` is called to show it.
    """
    from persia_cli.kernels.warm import warm

    events = Journal(run_dir / EVENTS)

    def note(done: int, total: int, kernel: str) -> None:
        events.write(event="compiling", done=done, total=total, kernel=kernel)
        follow()

    try:
        warm(note)
    finally:
        events.close()


def result_of(run_dir: Path) -> JobResult:
    """Read what a finished job recorded."""
    return JobResult(run_dir, read_journal(run_dir / METRICS), read_journal(run_dir / EVENTS))


def recorded_failure(run_dir: Path) -> PersiaError | None:
    """Return the failure the coordinator recorded, if it did."""
    for event in read_journal(run_dir / EVENTS):
        if event.get("phase") == "failed":
            kind = UserError if event["exit_code"] == UserError.exit_code else PersiaError
            return kind(event["error"])
    return None

"""A training as a user asks for it: its arguments composed, planned here or submitted elsewhere, and begun."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from persia_cli.config.compose import compose_run
from persia_cli.config.record import read_run
from persia_cli.config.schema import Run
from persia_cli.engines import driver_process
from persia_cli.engines.engine import engine_of
from persia_cli.engines.job import was_started
from persia_cli.engines.key_files import require_given_keys
from persia_cli.engines.readiness import require_network, require_ready, with_dense_fit
from persia_cli.errors import UserError
from persia_cli.jobs.plan import AUTO, begin_again, facts_of, plan_from, plan_resumed, split_resume
from persia_cli.jobs.reporter import Reporter
from persia_cli.jobs.run_dirs import checkpoints_at, choose_run_dir, claimed, folder_of, uri_of
from persia_cli.jobs.trace import traced_elsewhere
from persia_cli.observe.history import CONFIG
from persia_cli.plan.job import JobPlan, plan_job


@dataclass(frozen=True)
class TrainingRequest:
    """The meaning of a training's arguments."""

    run: Run
    overrides: list[str]
    """The settings, with that of the checkpoints of a run at a URI."""
    folders: Sequence[Path]
    """Folders of configurations."""
    run_dir: Path | None
    """The folder that the run gets, or has; None: a new one."""
    resumed: str | None
    """The value of `resume=`."""

    @property
    def arguments(self) -> list[str]:
        """The arguments of a command that asks for the same."""
        return [*self.overrides, *(text for folder in self.folders for text in ("--conf-dir", str(folder)))]

    def runs_elsewhere(self, dry_run: bool, is_point: bool) -> bool:
        """Return whether the job is submitted to other machines, and is not driven by this process."""
        return self.run.cluster.is_spread and (dry_run or not engine_of(self.run.cluster).drives_here(is_point))

    def traced(self, path: Path, steps: str | None) -> "TrainingRequest":
        """Return the request with an instruction to trace these steps, for a job that runs elsewhere."""
        return replace(self, run=traced_elsewhere(self.run, path, steps))

    def require_new(self) -> None:
        """Raise UserError for a resumed run on machines where the record of a run is."""
        cluster = self.run.cluster
        if self.resumed and not engine_of(cluster).driver_is_here:
            name = cluster.name
            raise UserError(f"resume={self.resumed} is not for cluster={name}; persia resume RUN goes on with a run")


@contextmanager
def requested(
    arguments: Sequence[str], folders: Sequence[Path], run_dir: str | None, reporter: Reporter
) -> Iterator[TrainingRequest]:
    """Yield the meaning of a training's arguments; `run_dir` is a folder or a URI, for whose record there is a folder.

    Raises UserError and ConfigError.
    """
    overrides, resumed = split_resume(arguments)
    run = compose_run(overrides, folders)
    folder = Path(run_dir) if run_dir is not None else None
    with ExitStack() as stack:
        if (uri := uri_of(run_dir)) is not None:
            overrides += checkpoints_at(uri, run, resumed)
            folder = stack.enter_context(folder_of(uri, run.name, reporter)) if resumed == AUTO else None
            run = compose_run(overrides, folders)
        yield TrainingRequest(run, overrides, folders, folder, resumed)


def plan_request(request: TrainingRequest, is_point: bool, reporter: Reporter) -> JobPlan:
    """Plan a training that this process drives; raises UserError for what does not fit the data or the machine.

    The points of a sweep are checked against the machine together, before the first begins.
    """
    run, folder, resumed = request.run, request.run_dir, request.resumed
    plan = plan_from(resumed, run, folder, reporter) if resumed else None
    if plan is None:
        run_dir = folder if folder and _begins_again(request) else choose_run_dir(run.name, folder)
        plan = plan_job(run, facts_of(run.dataset, reporter), "train", run_dir)
    if not is_point or plan.is_resumed or run.cluster.is_spread:
        _require_trainable(plan)
    return with_dense_fit(plan)


def _begins_again(request: TrainingRequest) -> bool:
    """Return whether the run directory has a run that has saved nothing, if there is nothing to resume."""
    return bool(request.resumed and request.run_dir and was_started(request.run_dir))


def plan_rest(run_dir: Path, overrides: Sequence[str], reporter: Reporter) -> JobPlan | Run:
    """Plan the rest of the training in a run directory; return its run if other machines are to plan it.

    Raises UserError for another folder, and what `plan_resumed` does.
    """
    if not (run_dir / CONFIG).is_file():
        raise UserError(
            f"{run_dir} is not a run directory: it has no {CONFIG}; give the folder that persia train named"
        )
    read_run(run_dir / CONFIG)  # before the arguments, since one of another version is refused as such
    run = compose_run([f"conf={run_dir / CONFIG}", *overrides])
    if run.cluster.is_spread and not engine_of(run.cluster).drives_here(is_point=False):
        return run
    plan = plan_resumed(run_dir, run, run_dir, reporter)
    _require_trainable(plan)
    return plan


def _require_trainable(plan: JobPlan) -> None:
    if plan.run.cluster.is_spread:
        require_given_keys(plan.run.cluster)
        require_network(plan)  # the rows are not in the memory of this machine
    else:
        require_ready([plan])


@contextmanager
def begun(plan: JobPlan, request: TrainingRequest, reporter: Reporter) -> Iterator[JobPlan]:
    """Yield the plan with its run directory, for a training in the block; a new folder goes if nothing begins."""
    if not plan.is_resumed and request.run_dir and _begins_again(request):
        begin_again(request.run_dir, reporter)
    plan = plan if request.run_dir else claimed(plan)
    try:
        with driving(plan):
            yield plan
    finally:
        if not request.run_dir:
            with suppress(OSError):  # empty only if the job was refused before it began
                plan.run_dir.rmdir()


def driving(plan: JobPlan) -> AbstractContextManager[None]:
    """Return the context in which this process drives a job, on the machines of a cluster as their only driver.

    Raises DiskError if the run directory cannot be one.
    """
    if plan.run.cluster.is_spread:
        return driver_process.driving(plan.run_dir)
    driver_process.forget_driver(plan.run_dir)
    return nullcontext()

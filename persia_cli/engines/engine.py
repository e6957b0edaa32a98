"""The interface of an engine, which runs the jobs of one kind of cluster, and the table of all engines.

- An engine is a class; its methods answer all questions about its kind. Only this file and the schema read
  `cluster.kind`. Facts that follow from settings alone are properties of these, such as `cluster.is_spread`.
- Its module is imported when a job needs it, so that a command loads no library of another engine.
- A replica is always `persia launch-role`, or a thread that runs the same role: roles do not depend on engines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from persia_cli.config.schema import Cluster, Run
from persia_cli.engines.job import JobResult
from persia_cli.errors import ConfigError, UserError
from persia_cli.plan.job import JobPlan

ENGINES = {
    "embedded": "persia_cli.engines.embedded:EmbeddedEngine",
    "hosts": "persia_cli.engines.hosts.engine:HostsEngine",
    "kubernetes": "persia_cli.engines.kubernetes.engine:KubernetesEngine",
    "local": "persia_cli.engines.local:LocalEngine",
    "ray": "persia_cli.engines.ray.engine:RayEngine",
    "slurm": "persia_cli.engines.slurm.engine:SlurmEngine",
}
"""The module and the class of each kind's engine."""

Settings = TypeVar("Settings")


class JobDriver(Protocol):
    """The process that drives a job, as commands on a machine with the run directory see it."""

    @property
    def running(self) -> bool:
        """True until it has ended."""

    @property
    def waits_for(self) -> str:
        """The reason why it does not run yet; empty if it runs."""

    def stop(self, at_once: bool) -> None:
        """Have it save the model and end the job, or end it `at_once`."""

    def kill(self) -> None:
        """End it, and all that it has started."""


class FollowedJob(Protocol):
    """A job that has been started, as the command shows it."""

    def show(self, poll: Callable[[], None], say: Callable[[str], None]) -> None:
        """Show the job until it has ended, calling `poll` again and again."""

    def stop(self, at_once: bool) -> None:
        """Have it saved and ended, or ended `at_once`; this does not wait."""

    def stop_and_wait(self, at_once: bool) -> None:
        """Do the same, and wait for the end; raises UserError if it had ended before."""

    def fetch(self) -> None:
        """Bring the run directory up to date."""


class Engine(ABC):
    """The jobs of one kind of cluster. What is not overridden is right for an engine that runs a job in the command."""

    extra: ClassVar[str] = ""
    """Name of a library that it needs, and of the package's extra that installs it."""
    record_is_here: ClassVar[bool] = True
    """False: a command's run directory is a copy of one on another machine, where the driver and checkpoints are."""
    driver_is_here: ClassVar[bool] = False
    """True: the driver of a submitted job is on the command's machine, so it reads the models there."""
    ends_with_command: ClassVar[bool] = True
    """True: Ctrl-C in the command that has submitted a job ends the job."""

    @abstractmethod
    def launch(self, plan: JobPlan, follow: Callable[[], None]) -> JobResult:
        """Run a job to its end from this process, the driver, as `persia_cli.engines.driver.drive` does."""

    def drives_here(self, is_point: bool) -> bool:
        """Return whether this command is on the machines of its cluster, and so drives the job; or a sweep's point."""
        return False

    def rendered(self, run: Run, run_dir: Path | None) -> str:
        """Return what `submit` would give to other programs; raises UserError if that is nothing."""
        name = run.cluster.name
        raise UserError(
            f"--render prints what a cluster of other machines is given, and cluster={name} submits nothing; --dry-run "
            "shows its plan"
        )

    def submit(self, run: Run, run_dir: Path, overrides: Sequence[str]) -> str:
        """Start the job's driver apart from this command, with the overrides of `persia drive`; return who runs it.

        Raises UserError if that is refused; the run directory is then unchanged.
        """
        raise UserError(
            f"cluster={run.cluster.name}: persia submits nothing there; --render prints what other programs submit"
        )

    def job_elsewhere(self, run_dir: Path, flags: Sequence[str]) -> FollowedJob:
        """Return a job whose record is not here; `flags` are those of `persia` for the command that shows it."""
        raise NotImplementedError

    def script_job(self, run_dir: Path) -> str:
        """Return the scheduler's name of the job whose script this process is; empty without a scheduler.

        Raises UserError if the scheduler has another job of the run.
        """
        return ""

    def scheduled_driver(self, job: str) -> JobDriver:
        """Return the driver that is the script of a scheduler's job."""
        raise NotImplementedError

    def scheduled_again(self, plan: JobPlan, report: Callable[[str], None]) -> AbstractContextManager[None]:
        """Have the scheduler run this script again if the job ends in the block because of its machines or its time."""
        return nullcontext()

    def stop_line(self, name: str) -> str:
        """Return the command of other programs that ends a job of this name; empty if `persia stop` does."""
        return ""

    def logs_line(self, name: str, role: str) -> str:
        """Return where a role's logs are, such as a command that prints them; empty if in the run directory."""
        return ""

    def require_installed(self) -> None:
        """Raise ConfigError if the library that it needs is missing."""
        if self.extra and find_spec(self.extra) is None:
            name = self.extra
            raise ConfigError(
                f"cluster={name} needs {name.capitalize()}, which is not installed: pip install 'persia-cli[{name}]'"
            )


def engine_of(cluster: Cluster) -> Engine:
    """Return the engine that trains on a cluster."""
    return engine_named(cluster.kind)


def engine_here(cluster: Cluster) -> Engine:
    """Return the engine that uses models: they are used on this machine alone, wherever they were trained."""
    return engine_named("embedded" if cluster.is_one_process else "local")


def engine_named(kind: str) -> Engine:
    """Return the engine of a kind."""
    module, _, name = ENGINES[kind].partition(":")
    engine = getattr(import_module(module), name)()
    assert isinstance(engine, Engine)
    return engine


def settings_of(run: Run, kind: type[Settings]) -> Settings:
    """Return the settings of a run's cluster as those of its engine."""
    assert isinstance(run.cluster, kind)
    return run.cluster

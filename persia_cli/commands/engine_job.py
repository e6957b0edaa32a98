"""Jobs of `persia train` that an engine runs on other machines."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from persia_cli.config.schema import Run


def render(run: "Run", run_dir: Path | None) -> str:
    """Return what the engine of a run would submit, as it takes it; a job is called as its run directory is.

    Raises UserError if the run has no engine.
    """
    from persia_cli.commands.job import choose_run_dir
    from persia_cli.config.schema import ENGINES
    from persia_cli.errors import UserError

    kind, name = run.cluster.kind, run_dir.absolute().name if run_dir else run.name
    match kind:
        case "hosts":
            from persia_cli.engines.hosts.start import rendered

            return rendered(run, name if run_dir else choose_run_dir(run.name, None).name)
        case "kubernetes":
            from persia_cli.engines.kubernetes.manifests import as_yaml

            # The same name each time: a job that is given to the cluster again goes on.
            return as_yaml(run, name)
        case "ray":
            from persia_cli.engines.ray.request import rendered as ray_request

            return ray_request(run, str(run_dir or choose_run_dir(run.name, None)))
        case "slurm":
            from persia_cli.engines.slurm.script import script

            return script(run, run_dir or Path("runs", run.name))
    raise UserError(
        f"--render prints what {', '.join(f'cluster={engine}' for engine in ENGINES)} submit, and cluster={kind} "
        "submits nothing; --dry-run shows its plan"
    )


def train_elsewhere(run: "Run", run_dir: Path | None, trace: Path | None = None) -> None:
    """Train on the machines of a run's cluster, show the progress and print the results.

    `run_dir` is a free folder of this machine; by default a new one. What roles recorded becomes the file `trace`.
    """
    from persia_cli.commands.job import choose_run_dir
    from persia_cli.disk import claim_folder

    train = _trainer(run, goes_on=False)
    place = choose_run_dir(run.name, run_dir)
    if run_dir:
        _traced(train, run, place, trace)
        return
    claimed = claim_folder(place)
    try:
        _traced(train, run, claimed, trace)
    finally:
        with suppress(OSError):  # empty only if the job was refused before it began
            claimed.rmdir()


def _traced(train: "Callable[[Run, Path], None]", run: "Run", run_dir: Path, trace: Path | None) -> None:
    """Train, and leave what roles have recorded in the file `trace`, even if the job fails."""
    from persia_cli.commands.followed import plan_of
    from persia_cli.commands.job import leave_trace
    from persia_cli.commands.screen import err
    from persia_cli.engines.job import JOB
    from persia_cli.observe.recordings import remove_recordings

    try:
        train(run, run_dir)
    finally:
        if trace and (run_dir / JOB).exists():
            plan = plan_of(run_dir)
            leave_trace(err(), run_dir, plan.job, plan.replicas, trace)
            remove_recordings(run_dir)


def resume_elsewhere(run: "Run", run_dir: Path) -> None:
    """Go on with the training of a run on the machines of its cluster, as `train_elsewhere`."""
    _trainer(run, goes_on=True)(run, run_dir)


def resume_at_uri(run: "Run", uri: str) -> None:
    """Go on with the run at a URI on the machines of its cluster; its coordinator fetches the record."""
    from persia_cli.commands.hosts_job import take_up_on_hosts
    from persia_cli.commands.run_at_uri import folder_of, new_folder

    if run.cluster.kind == "hosts":
        # Where this is the coordinator's machine, it has that one's run directory, and this command needs its own.
        with new_folder(run.name) as folder:
            take_up_on_hosts(run, folder)
        return
    with folder_of(uri, run.name) as folder:
        _trainer(run, goes_on=False)(run, folder)


def _trainer(run: "Run", goes_on: bool) -> "Callable[[Run, Path], None]":
    """Return what trains on the machines of a run's cluster, or goes on there; raises UserError if nothing does."""
    import os

    from persia_cli.errors import UserError

    match run.cluster.kind:
        case "hosts":
            from persia_cli.commands.hosts_job import resume_on_hosts, train_on_hosts

            return resume_on_hosts if goes_on else train_on_hosts
        case "slurm":
            from persia_cli.commands.slurm_allocation import train_in_allocation
            from persia_cli.commands.slurm_job import train_on_slurm
            from persia_cli.engines.slurm.allocation import is_inside

            return partial(train_in_allocation, requeues=False) if is_inside(os.environ) else train_on_slurm
    raise UserError(
        f"cluster={run.cluster.kind}: persia submits nothing there; --render prints what other programs submit"
    )

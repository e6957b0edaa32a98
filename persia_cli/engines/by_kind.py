"""The engine of each kind of cluster."""

from collections.abc import Callable
from functools import partial

from persia_cli.config.schema import Run
from persia_cli.engines.job import JobResult
from persia_cli.plan.job import JobPlan

Launch = Callable[[JobPlan, Callable[[], None]], JobResult]
"""A function that runs a job to its end as `drive` does; the second argument is called again and again."""


def engine_of(run: Run, trains: bool) -> Launch:
    """Return the function by which this process drives a job; one that `trains` runs on the machines of its cluster.

    Models are used on this machine alone.
    """
    from persia_cli.engines.distributed import launch

    match run.cluster.kind:
        case "embedded":
            from persia_cli.engines import embedded

            return embedded.launch
        case "hosts" if trains:
            from persia_cli.engines.hosts.machines import machines as on_hosts

            return partial(launch, machines=on_hosts)
        case "ray" if trains:
            from persia_cli.engines.ray.cluster import machines as on_ray

            return partial(launch, machines=on_ray)
        case "slurm" if trains:
            from persia_cli.engines.slurm.steps import machines as on_slurm

            return partial(launch, machines=on_slurm)
    from persia_cli.engines import local

    return local.launch

"""The launcher of `cluster=ray`."""

from collections.abc import Callable

from persia_cli.engines.driver import drive
from persia_cli.engines.job import JobResult
from persia_cli.engines.ray.cluster import connected
from persia_cli.engines.ray.job import RayJob
from persia_cli.plan.job import JobPlan


def launch(plan: JobPlan, follow: Callable[[], None] = lambda: None) -> JobResult:
    """Run the job to its end as `drive` does; KilledError is also raised for lost actors and machines.

    Nothing outlives this process.
    """
    with connected(plan.run) as cluster:
        return drive(plan, lambda _: RayJob(plan, cluster), follow)

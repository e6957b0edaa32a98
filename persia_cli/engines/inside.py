"""Commands that are on the machines of their jobs already, and so drive them: nothing is to be submitted."""

import os
from contextlib import AbstractContextManager

from persia_cli.config.schema import Run
from persia_cli.engines.driver_process import driving
from persia_cli.plan.job import JobPlan

SUBMITTED_BY_RAY = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable of a command that was given to `ray job submit`: it is in the cluster, with no terminal."""


def drives_here(run: Run, is_point: bool = False) -> bool:
    """Return whether a command drives the job of a run: in an allocation of Slurm, or started by Ray.

    On Ray it does so also for a point of a sweep, which ends it.
    """
    match run.cluster.kind:
        case "slurm":
            return bool(os.environ.get("SLURM_JOB_ID"))
        case "ray":
            return is_point or SUBMITTED_BY_RAY in os.environ
    return False


def as_driver(plan: JobPlan) -> AbstractContextManager[None]:
    """Note this process as the driver of a job while the block runs."""
    return driving(plan.run_dir)

"""Which replicas get a new process when theirs ends, and which memory it finds."""

import signal

from persia_cli.config.schema import Run
from persia_cli.control.restarts import LEFT_GROUP, NEVER_AGAIN
from persia_cli.plan.job import COORDINATOR, Job

RESTARTED = ("embedding-worker", "data-loader")
"""Roles whose replicas get a new process however theirs dies."""

WITH_MEMORY = ("embedding-server", "nn-worker")
"""Roles whose memory may outlive their process."""

TRUSTED = (-signal.SIGKILL, -signal.SIGTERM, LEFT_GROUP)
"""Ends by a signal from outside, or for other ranks' sake, after which the memory of a process is as it wrote it."""


def is_replaced(role: str, exit_code: int, memory_is_kept: bool) -> bool:
    """Return whether a replica whose process has ended so can get a new one; those that keep memory, by its trust."""
    if role == COORDINATOR:
        return exit_code < 0
    if role in WITH_MEMORY:
        return memory_is_kept and exit_code in TRUSTED
    return role in RESTARTED and exit_code not in NEVER_AGAIN


def keeps_memory(run: Run, job: Job, role: str) -> bool:
    """Return whether the memory of a replica's process may outlive it; an NN worker decides that in the end."""
    if role == "embedding-server":
        return run.cluster.kind != "embedded" and not (job.benchmark and job.benchmark.private_memory)
    return role == "nn-worker" and job.task == "train" and run.recovery.dense_memory != "off"

"""The decision which replicas get a new process after a death, and which memory it finds."""

import signal

from persia_cli.config.schema import Run
from persia_cli.control.restarts import NEVER_AGAIN
from persia_cli.plan.job import Job

RESTARTED = ("embedding-worker", "data-loader")
"""Roles whose replicas get a new process after any death."""

WITH_MEMORY = "embedding-server"
"""The role whose memory outlives its process."""

TRUSTED = (-signal.SIGKILL, -signal.SIGTERM)
"""Ends by a signal from outside, after which the memory of a process is intact."""


def is_replaced(role: str, exit_code: int, memory_is_retained: bool) -> bool:
    """Return whether a replica whose process ended in this way can get a new one; a server, if its memory is intact."""
    if role == WITH_MEMORY:
        return memory_is_retained and exit_code in TRUSTED
    return role in RESTARTED and exit_code not in NEVER_AGAIN


def retains_memory(run: Run, job: Job, role: str) -> bool:
    """Return whether the memory of a replica outlives its process."""
    private = run.cluster.kind == "embedded" or bool(job.benchmark and job.benchmark.private_memory)
    return role == WITH_MEMORY and not private

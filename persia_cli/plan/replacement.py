"""The rule by role and exit code: whether a dead process may be replaced, and whether its memory remains usable."""

import signal

from persia_cli.config.schema import Run
from persia_cli.control.restarts import NEVER_AGAIN
from persia_cli.plan.job import Job

RESTARTED = ("embedding-worker", "data-loader")
"""Roles whose replicas get a new process after any death."""

WITH_MEMORY = "embedding-server"
"""The role whose memory outlives its process."""

TRUSTED = (-signal.SIGKILL, -signal.SIGTERM)
"""Ends by a signal from outside, after which the memory of a process is intact.

A role takes SIGTERM as the order to save and end the job, so this signal kills it only before it handles signals.
"""


def may_be_replaced(role: str, exit_code: int, memory_is_retained: bool) -> bool:
    """Return whether a new process may follow one that ended in this way; RestartPolicy limits how often."""
    if role == WITH_MEMORY:
        return memory_is_retained and exit_code in TRUSTED
    return role in RESTARTED and exit_code not in NEVER_AGAIN


def retains_memory(run: Run, job: Job, role: str) -> bool:
    """Return whether the memory of a replica outlives its process."""
    private = run.cluster.kind == "embedded" or bool(job.benchmark and job.benchmark.private_memory)
    return role == WITH_MEMORY and not private

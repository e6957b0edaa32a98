"""Whether a replica reaches the folder of a job's checkpoints."""

import socket
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.errors import ConfigError
from persia_cli.observe.history import CONFIG
from persia_cli.plan.job import Job


def require_folder(run: Run, job: Job, name: str) -> None:
    """Raise ConfigError if a replica is to write parts of checkpoints into a folder that its machine does not have."""
    checkpoint = run.checkpoint
    if job.task != "train" or not checkpoint.saves or "://" in (checkpoint.path or ""):
        return
    found = Path(checkpoint.path).is_dir() if checkpoint.path else (Path(job.run_dir) / CONFIG).is_file()
    if not found:
        raise ConfigError(
            f"{name} is to save its part of checkpoints in {checkpoint.path or job.run_dir}, and its machine, "
            f"{socket.gethostname()}, has no such folder; set checkpoint.path to a URI that all reach, such as "
            "s3://bucket/folder, or save nothing (checkpoint.at_end=false and checkpoint.every_minutes=null)"
        )

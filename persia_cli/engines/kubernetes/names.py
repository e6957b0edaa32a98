"""Names of a job's objects on Kubernetes."""

import re

from persia_cli.errors import ConfigError

LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
JOB = "0"
"""Number of the Job of a role: there is one for each, with a pod for each replica."""


def job_name(name: str, role: str) -> str:
    """Return the name that JobSet gives the Job of a role."""
    return f"{name}-{role}-{JOB}"


def host_name(name: str, role: str, index: int) -> str:
    """Return the host name of a replica's pod, which is a name of DNS below that of the job."""
    return f"{job_name(name, role)}-{index}"


def check_name(name: str) -> None:
    """Raise ConfigError for a name that cannot be part of host names."""
    if not LABEL.fullmatch(name):
        raise ConfigError(
            f"name={name}: on Kubernetes a job's name is part of host names: lower-case letters, digits and hyphens, "
            f"a letter first; set name={proposal(name)}"
        )


def proposal(name: str) -> str:
    """Return a valid name that is like this one."""
    return re.sub("^[^a-z]+|-+$", "", re.sub("[^a-z0-9]+", "-", name.lower())) or "job"

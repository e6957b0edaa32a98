"""Names of a job's objects on Kubernetes, and the rules that they keep; whoever breaks one is refused before a cluster.

The rules are those of Kubernetes (labels of DNS), and those of JobSet's webhook, which no schema has: every job and pod
that JobSet is to make must have a valid name, the coordinator's too, and policies must name jobs that there are.
"""

import re
from collections.abc import Collection, Mapping

from persia_cli.errors import ConfigError

MOST = 63
"""Characters of a label of DNS (RFC 1035), and of the value of a Kubernetes label."""
LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")
KEY = re.compile(r"(?:(?P<prefix>[a-z0-9]([a-z0-9.-]*[a-z0-9])?)/)?(?P<name>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)")
SUFFIX = "-abcde"
"""What Kubernetes adds to the name of each pod of a Job: five characters by chance."""
JOB = "0"
"""Number of the Job of a role: there is one for each, with a pod for each replica."""


def job_name(name: str, role: str) -> str:
    """Return the name that JobSet gives the Job of a role."""
    return f"{name}-{role}-{JOB}"


def host_name(name: str, role: str, index: int) -> str:
    """Return the host name of a replica's pod, which is a name of DNS below that of the job."""
    return f"{job_name(name, role)}-{index}"


def check_name(name: str, counts: Mapping[str, int]) -> None:
    """Raise ConfigError unless the jobs and pods of a job of this name, with so many replicas, have valid names."""
    if not LABEL.fullmatch(name):
        raise ConfigError(
            f"name={name}: on Kubernetes a job's name is part of host names: lower-case letters, digits and hyphens, "
            f"a letter first; set name={proposal(name)}"
        )
    longest = max((host_name(name, role, count - 1) + SUFFIX for role, count in counts.items()), key=len)
    if len(longest) > MOST:
        raise ConfigError(
            f"name={name} is too long: a pod would be called {longest}, and Kubernetes allows {MOST} characters; "
            f"use at most {MOST - len(longest) + len(name)} of them"
        )


def proposal(name: str) -> str:
    """Return a valid name that is like this one."""
    return re.sub("^[^a-z]+|-+$", "", re.sub("[^a-z0-9]+", "-", name.lower())) or "job"


def check_labels(what: str, labels: Mapping[str, str], own: Collection[str]) -> None:
    """Raise ConfigError for labels that Kubernetes would refuse, or that the job sets itself."""
    for key, value in labels.items():
        check_key(what, key, own)
        if len(value) > MOST or not VALUE.fullmatch(value):
            raise ConfigError(
                f"{what}.{key}={value}: the value of a label has at most {MOST} letters, digits, '-', '_' and '.'"
            )


def check_key(what: str, key: str, own: Collection[str]) -> None:
    """Raise ConfigError for a key that no label or annotation can have, or that the job sets itself."""
    found = KEY.fullmatch(key)
    if found is None or len(found["name"]) > MOST:
        raise ConfigError(f"{what}.{key}: not a name, or a domain and a name, such as example.com/team")
    if key in own:
        raise ConfigError(f"{what}.{key}: the job sets it itself; leave it out")

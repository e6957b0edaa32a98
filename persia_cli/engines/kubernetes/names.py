"""Names of a job's objects on Kubernetes, and the lines of kubectl with them: Persia itself talks to no cluster."""

import re

from persia_cli.engines.kubernetes.pod import COMPONENT, INDEX, INSTANCE, RUNS
from persia_cli.errors import ConfigError
from persia_cli.plan.job import COORDINATOR

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


def attach_line(name: str) -> str:
    """Return the line that shows a job in the container of its coordinator."""
    pod = f"job/{job_name(name, COORDINATOR)}"
    return f"kubectl exec -it {pod} -- persia attach {RUNS}/{name}"


def stop_line(name: str) -> str:
    """Return the line that has a job save its model and end: its pods get a signal, and nothing starts them again."""
    return f"kubectl delete jobset {name} --cascade=foreground"


def logs_line(name: str, role: str = "") -> str:
    """Return the line that prints the logs of a job, of a role, or of a replica such as `nn-worker-0`."""
    labels = [f"{INSTANCE}={name}"]
    stem, _, index = role.rpartition("-")
    if index.isdigit():
        labels += [f"{COMPONENT}={stem}", f"{INDEX}={index}"]
    elif role:
        labels.append(f"{COMPONENT}={role}")
    return f"kubectl logs --prefix --tail=-1 -l {','.join(labels)}"

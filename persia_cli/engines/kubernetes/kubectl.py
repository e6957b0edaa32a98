"""The command lines of kubectl that show a job, stop it and print its logs: Persia itself talks to no cluster."""

from persia_cli.engines.kubernetes.names import job_name
from persia_cli.engines.kubernetes.pod import COMPONENT, INDEX, INSTANCE, RUNS
from persia_cli.plan.job import COORDINATOR


def attach_line(name: str, namespace: str | None = None) -> str:
    """Return the line that shows a job in the container of its coordinator."""
    pod = f"job/{job_name(name, COORDINATOR)}"
    return f"{_kubectl(namespace)} exec -it {pod} -- persia attach {RUNS}/{name}"


def stop_line(name: str, namespace: str | None = None) -> str:
    """Return the line that has a job save its model and end: its pods are told, and nothing starts them again."""
    return f"{_kubectl(namespace)} delete jobset {name} --cascade=foreground"


def logs_line(name: str, role: str = "", namespace: str | None = None) -> str:
    """Return the line that prints the logs of a job, of a role, or of a replica such as `nn-worker-0`."""
    labels = [f"{INSTANCE}={name}"]
    stem, _, index = role.rpartition("-")
    if index.isdigit():
        labels += [f"{COMPONENT}={stem}", f"{INDEX}={index}"]
    elif role:
        labels.append(f"{COMPONENT}={role}")
    return f"{_kubectl(namespace)} logs --prefix --tail=-1 -l {','.join(labels)}"


def _kubectl(namespace: str | None) -> str:
    return f"kubectl --namespace {namespace}" if namespace else "kubectl"

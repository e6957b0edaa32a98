"""The command lines of kubectl that show a job, stop it and print its logs: Persia itself talks to no cluster."""

from persia_cli.engines.kubernetes.names import job_name
from persia_cli.engines.kubernetes.pod import COMPONENT, INDEX, INSTANCE, RUNS
from persia_cli.plan.job import COORDINATOR


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

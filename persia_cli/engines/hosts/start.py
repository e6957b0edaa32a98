"""What is started on each machine: the words of each replica."""

import shlex

from persia_cli.config.schema import Run, SshHost
from persia_cli.engines.hosts.placement import placement_of, settings_of
from persia_cli.engines.hosts.remote import ssh_command
from persia_cli.engines.role_words import Placed, role_words
from persia_cli.plan.job import COORDINATOR, Replica

RUN = "run"
"""The run directory, in the folder of a job on the coordinator's machine."""


def start_folder(job: str, number: int) -> str:
    """Return the folder, on each machine, of logs and ends of the replicas of a job that is started for the n-th time.

    A job that is resumed is started again.
    """
    return f"{job}/start-{number}"


def start_words(run: Run, replica: Replica, host: SshHost, job: str, number: int, coordinator: str) -> list[str]:
    """Return the words that start a replica in the folder `job` of its machine; standard input has the keys."""
    cpus = run.cluster.processors_of(replica.role, replica.index)
    own = f"tcp://{host.address}:*" if host.address and replica.role != COORDINATOR else ""
    at = Placed(coordinator, run_dir=f"{job}/{RUN}", advertise=own, cpus=cpus)
    words = role_words(replica.role, replica.index, at)
    words[1:1] = ["--background", start_folder(job, number)]
    return [*words, "resume=auto"] if replica.role == COORDINATOR and number > 1 else words


def rendered(run: Run, job: str) -> str:
    """Return what `cluster=hosts` would start, as lines of a shell; what only machines know is in capitals.

    Each command gets the job's keys, and the coordinator's the configuration too, through standard input.
    """
    hosts, placement = settings_of(run), placement_of(run)
    place = next(iter(placement.values())).address or "ADDRESS"
    lines = []
    for replica, host in placement.items():
        port = "*" if replica.role == COORDINATOR else "PORT"
        words = start_words(run, replica, host, job, 1, f"tcp://{place}:{port}")
        lines += [f"# {replica.name} on {host.ssh}", shlex.join(ssh_command(hosts, host, words))]
    return "\n".join(lines)

"""What is started on each machine: the words of each replica."""

import shlex

from persia_cli.config.schema import Run, SshHosts
from persia_cli.engines.hosts.placement import placement_of
from persia_cli.engines.hosts.remote import ssh_command
from persia_cli.engines.role_words import Placed, role_words
from persia_cli.plan.job import Replica

ROLES, RUN = "roles", "run"
"""Folders of a job on a machine: logs and ends of its replicas; on the coordinator's, the run directory too."""


def start_words(replica: Replica, job: str, coordinator: str) -> list[str]:
    """Return the words that start a replica in the folder `job` of its machine; standard input has the keys."""
    words = role_words(replica.role, replica.index, Placed(coordinator, run_dir=f"{job}/{RUN}"))
    words[1:1] = ["--background", f"{job}/{ROLES}"]
    return words


def rendered(run: Run, job: str) -> str:
    """Return what `cluster=hosts` would start, as lines of a shell; addresses that only machines know are in capitals.

    Each command gets the job's keys, and the coordinator's the configuration too, through standard input.
    """
    hosts, placement = run.cluster.hosts or SshHosts(), placement_of(run)
    first = next(iter(placement.values()))
    place = first.address or "ADDRESS"
    lines = []
    for replica, host in placement.items():
        port = "*" if host is first and replica.role == "coordinator" else "PORT"
        words = start_words(replica, job, f"tcp://{place}:{port}")
        lines += [f"# {replica.name} on {host.ssh}", shlex.join(ssh_command(hosts, host, words))]
    return "\n".join(lines)

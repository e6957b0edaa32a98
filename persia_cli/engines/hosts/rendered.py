"""The commands that `cluster=hosts` starts on its machines, as lines of a shell."""

import shlex

from persia_cli.config.schema import Run
from persia_cli.engines.hosts.placement import first_of, placement_of, settings_of
from persia_cli.engines.hosts.ssh import ssh_command
from persia_cli.engines.role_words import role_words
from persia_cli.plan.job import COORDINATOR


def rendered(run: Run, job: str) -> str:
    """Return the commands; what only machines know is in capitals.

    The driver gets the job's keys and the configuration through its standard input, and the others get the keys.
    """
    hosts, first = settings_of(run), first_of(run)
    lines = [f"# the driver and coordinator-0 on {first.ssh}"]
    lines += [shlex.join(ssh_command(hosts, first, ["drive", "--background", "--run-dir", job]))]
    for replica, host in placement_of(run).items():
        if replica.role == COORDINATOR:
            continue
        advertise = f"tcp://{host.address}:*" if host.address else ""
        cpus = run.cluster.processors_of(replica.role, replica.index)
        coordinator = f"tcp://{first.address or 'ADDRESS'}:PORT"
        words = role_words(replica.role, replica.index, coordinator, advertise=advertise, cpus=cpus)
        command = ["persia", *words] if host == first else ssh_command(hosts, host, words)
        lines += [f"# {replica.name} on {host.ssh}, started by the driver", shlex.join(command)]
    return "\n".join(lines)

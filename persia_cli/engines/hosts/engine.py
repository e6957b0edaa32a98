"""The engine of `cluster=hosts`: its driver is on the first machine, and reaches the others by ssh."""

import ipaddress
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from persia_cli.config.schema import HostsCluster, Run, SshHost
from persia_cli.engines.child import Child
from persia_cli.engines.distributed import DistributedEngine
from persia_cli.engines.engine import settings_of
from persia_cli.engines.hosts.placement import Placement, first_of, placement_of
from persia_cli.engines.hosts.ssh import HostFacts, ask, facts_of_host, ssh_command
from persia_cli.engines.hosts.submitted import SubmittedJob, submit
from persia_cli.engines.job import timed
from persia_cli.engines.placement import rows_of_server
from persia_cli.engines.processes import python_module
from persia_cli.engines.role_options import arguments_of
from persia_cli.errors import ConfigError, PersiaError
from persia_cli.plan.job import COORDINATOR, JobPlan, Replica
from persia_cli.plan.pinning import require_processors

MOST_AT_ONCE = 16


class HostsEngine(DistributedEngine):
    """An engine whose replicas are at the other end of ssh commands; driver and record are on the first host."""

    record_is_here = False
    driver_is_here = False

    def machines(self, plan: JobPlan) -> AbstractContextManager["HostMachines"]:
        """Enter the machines of one start of a job."""
        return nullcontext(HostMachines(plan.run, leaves_out_lost=plan.job.rollback is not None))

    def rendered(self, run: Run, run_dir: Path | None) -> str:
        """Return the commands that are started on the machines; what only these know is in capitals.

        The driver gets the job's keys and the configuration through its standard input, and the others get the keys.
        """
        hosts, first = settings_of(run, HostsCluster), first_of(run)
        job = run_dir.absolute().name if run_dir else timed(Path(), f"{run.name}-").name
        lines = [f"# the driver and {COORDINATOR}-0 on {first.ssh}"]
        lines += [shlex.join(ssh_command(hosts, first, ["drive", "--background", "--run-dir", job]))]
        for replica, host in placement_of(run).items():
            if replica.role == COORDINATOR:
                continue
            advertise = f"tcp://{host.address}:*" if host.address else ""
            arguments = arguments_of(run, replica, f"tcp://{first.address or 'ADDRESS'}:PORT", advertise)
            command = ["persia", *arguments] if host == first else ssh_command(hosts, host, arguments)
            lines += [f"# {replica.name} on {host.ssh}, started by the driver", shlex.join(command)]
        return "\n".join(lines)

    def submit(self, run: Run, run_dir: Path, overrides: Sequence[str]) -> str:
        """Start the driver on the first host."""
        submit(run, run_dir, overrides)
        return f"the driver on {first_of(run).ssh} runs the job"

    def job_elsewhere(self, run_dir: Path, flags: Sequence[str]) -> SubmittedJob:
        """Return a job whose driver and record are on the first host."""
        return SubmittedJob(run_dir, flags)


class HostMachines:
    """The first machine, which is this one, and others that ssh reaches."""

    def __init__(self, run: Run, leaves_out_lost: bool) -> None:
        """With `leaves_out_lost`, replicas of machines that ssh does not reach run on the other ones."""
        self._run, self._leaves_out_lost = run, leaves_out_lost
        self._hosts = settings_of(run, HostsCluster)
        self._first = first_of(run)
        self._placement = placement_of(run)
        self.address = address_of(self._first, os.environ.get("SSH_CONNECTION", ""), self._is_alone)

    @property
    def _is_alone(self) -> bool:
        return all(host == self._first for host in self._placement.values())

    def prepare(self, say: Callable[[str], None], meanwhile: Callable[[], None]) -> None:
        """Ask all machines whether they can be used; raises the reason of the first that cannot."""
        others = [host for host in self._hosts.hosts if host != self._first]
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            answers = dict(zip(others, pool.map(self._answer_of, others), strict=True))
        if lost := [host for host, answer in answers.items() if isinstance(answer, PersiaError)]:
            say(f"the job goes on without {' and '.join(host.ssh for host in lost)}")
            left = tuple(host for host in self._hosts.hosts if host not in lost)
            self._placement = placement_of(self._run, left)
        facts = {host: answer for host, answer in answers.items() if isinstance(answer, HostFacts)}
        require_usable(self._run, self._placement, facts | {self._first: facts_of_host()})
        for host in dict.fromkeys(self._placement.values()):
            say(f"{host.ssh}: {', '.join(replica.name for replica, at in self._placement.items() if at == host)}")
        meanwhile()

    def _answer_of(self, host: SshHost) -> HostFacts | PersiaError:
        try:
            return ask(self._hosts, host)
        except PersiaError as error:
            if not self._leaves_out_lost:
                error.add_note(f"{self._first.ssh}, which drives the job, has to reach it.")
                raise
            return error

    def start(self, replica: Replica, arguments: list[str], given: str, log: Path) -> Child:
        """Start a replica."""
        host = self._placement[replica]
        arguments = [*arguments, *(["--advertise", f"tcp://{host.address}:*"] if host.address else [])]
        if host == self._first:
            return Child(host.ssh, [*python_module("persia_cli"), *arguments], given, log)
        return Child(host.ssh, ssh_command(self._hosts, host, arguments), given, log)


def require_usable(run: Run, placement: Placement, facts: Mapping[SshHost, HostFacts]) -> None:
    """Raise ConfigError for a machine with too little memory for its rows, or without the processors of a pin."""
    for host, machine in facts.items():
        servers = sum(at == host for replica, at in placement.items() if replica.role == "embedding-server")
        wanted = servers * rows_of_server(run)
        if wanted > machine.memory:
            raise ConfigError(
                f"{host.ssh} has {machine.memory / 2**30:.1f} GiB of memory, and the rows of its embedding servers may "
                f"take {wanted / 2**30:.1f} GiB; lower embedding.memory, or place fewer servers there"
            )
    for replica, host in placement.items():
        require_processors(run, replica, facts[host].processors, host.ssh)


def address_of(first: SshHost, connection: str, is_alone: bool) -> str:
    """Return where the coordinator is to listen; raises ConfigError if the other machines would not reach it there.

    `connection` is SSH_CONNECTION of a process that ssh has started: the addresses and ports of client and server.
    """
    parts = connection.split()
    address = first.address or (parts[2] if len(parts) == 4 else "")
    if not address:
        raise ConfigError(f"{first.ssh} does not know at which address ssh reaches it; {_give(first)}")
    try:
        is_loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        is_loopback = False  # a name
    if ":" in address:
        raise ConfigError(f"{first.ssh} is reached at {address}, an IPv6 address; {_give(first)}")
    if is_loopback and not is_alone:
        raise ConfigError(f"{first.ssh} is reached at {address}, where no other machine reaches it; {_give(first)}")
    return address


def _give(host: SshHost) -> str:
    return f"give the one that the other machines reach: cluster.hosts=[{{ssh: {host.ssh}, address: IP}}, …]"

"""Steps of a job: srun starts each replica on a machine of the allocation, and is its supervisor's parent here."""

import shlex
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from persia_cli.config.schema import Run, SlurmCluster
from persia_cli.engines.child import Child, failure_in
from persia_cli.engines.engine import settings_of
from persia_cli.engines.job import SIGNALLED
from persia_cli.engines.placement import resources_of
from persia_cli.engines.slurm.machines import MachineSlot, mebibytes, slots_of
from persia_cli.engines.slurm.programs import address_of, hosts_in, lost_among
from persia_cli.errors import ConfigError, RoleError, UserError
from persia_cli.plan.job import COORDINATOR, Replica
from persia_cli.plan.pinning import numbers
from persia_cli.wire.addresses import address_towards

ROOM_S = 60
"""Seconds that a step waits for the processors of the one before it."""
BY_SRUN = "srun: error: "
"""Beginning of what srun itself prints; its last line begins so if a step cannot begin, or its machine is lost."""
JOB, NODES, GROUPS = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_HET_SIZE"
LOOPBACK = "127."


@dataclass(frozen=True, slots=True)
class Allocation:
    """A job's number, and its machines: of each component, if it is heterogeneous."""

    job: str
    groups: tuple[tuple[str, ...], ...]

    def group_of(self, slot: MachineSlot) -> int | None:
        """Return the component of a machine; None if there is but one."""
        return min(slot.kind, len(self.groups) - 1) if len(self.groups) > 1 else None

    def node_of(self, slot: MachineSlot) -> str:
        """Return the name of a machine."""
        group = self.groups[self.group_of(slot) or 0]
        return group[slot.node % len(group)]

    @property
    def nodes(self) -> list[str]:
        """All machines, each once."""
        return list(dict.fromkeys(node for group in self.groups for node in group))

    def lost(self, say: Callable[[str], None]) -> frozenset[str]:
        """Return the machines that are known to be lost: none, which is said, while Slurm does not answer."""
        try:
            return frozenset(lost_among(self.nodes))
        except RoleError as error:
            say(f"Slurm does not tell which machines are lost: {error}")
            return frozenset()


def allocation_of(environment: Mapping[str, str]) -> Allocation:
    """Return the allocation that the environment of a process tells of; raises UserError if it tells half of it."""
    groups = int(environment.get(GROUPS, "0"))
    names = [f"{NODES}_HET_GROUP_{each}" for each in range(groups)] or [NODES]
    for name in names:
        if not environment.get(name):
            raise UserError(
                f"{JOB} is set, as in a job of Slurm, but {name} is not; run this in the shell of salloc or sbatch, or "
                f"unset {JOB} to have the job queued"
            )
    lists = [environment[name] for name in names]
    # The number of a heterogeneous job is that of its first component, whose script this is.
    return Allocation(environment[JOB], tuple(tuple(hosts_in(each)) for each in lists))


def listening_address(node: str, others: list[str]) -> str:
    """Return the IP address at which other machines of the job reach one of them.

    A machine's name may lead only to its loopback address; then its address on the route to another machine counts.
    """
    address = _ip_of(node)
    if address.startswith(LOOPBACK) and others:
        address = address_towards(f"tcp://{_ip_of(others[0])}:1")
    return address


def _ip_of(node: str) -> str:
    name = address_of(node)
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise RoleError(f"there is no address for {name}, the machine {node}: {error.strerror}") from error


class LostMachinesError(RoleError):
    """Machines of the allocation are lost, so the job needs another allocation."""


class SlurmMachines:
    """The machines of an allocation, the first of which is this one."""

    def __init__(self, run: Run, allocation: Allocation) -> None:
        self._run, self._allocation = run, allocation
        self._slots = slots_of(run)
        self._nodes = {replica: allocation.node_of(slot) for replica, slot in self._slots.items()}
        first = self._nodes[Replica(COORDINATOR, 0)]
        self.address = listening_address(first, [node for node in self._nodes.values() if node != first])

    def prepare(self, say: Callable[[str], None], meanwhile: Callable[[], None]) -> None:
        """Report which machine has what; raises LostMachinesError if Slurm has lost one."""
        if lost := self._allocation.lost(say) & set(self._nodes.values()):
            raise LostMachinesError(f"machines of the job {self._allocation.job} are lost: {', '.join(sorted(lost))}")
        for node in dict.fromkeys(self._nodes.values()):
            say(f"{node}: {', '.join(replica.name for replica, at in self._nodes.items() if at == node)}")
        meanwhile()

    def start(self, replica: Replica, arguments: list[str], given: str, log: Path) -> Child:
        """Start a replica."""
        group, node = self._allocation.group_of(self._slots[replica]), self._nodes[replica]
        command = [*step_command(self._run, replica, group, node), *arguments]
        return Child(node, command, given, log, is_lost_by_srun)


def is_lost_by_srun(code: int, text: str) -> bool:
    """Return whether a step has ended for a reason that its replica has not reported."""
    return code != UserError.exit_code and code < SIGNALLED and failure_in(text).startswith(BY_SRUN)


def step_command(run: Run, replica: Replica, group: int | None, node: str) -> list[str]:
    """Return the command that runs Persia on a machine of the job, up to its arguments.

    `group` is the machine's component, if the job is heterogeneous.
    """
    resources = resources_of(run, replica.role)
    command = ["srun", *([] if group is None else [f"--het-group={group}"]), f"--job-name={replica.name}"]
    command += [f"--nodelist={node}", "--nodes=1", "--ntasks=1"]
    # A step that asks for no exact amount gets the whole machine, and the next one waits.
    command += ["--exact", f"--cpus-per-task={resources.cpus}", f"--mem={mebibytes(resources.memory)}M"]
    if resources.gpus:
        command += [f"--gres={settings_of(run, SlurmCluster).gpu}:{resources.gpus}"]
    elif group is None and resources_of(run, "nn-worker").gpus:
        command += ["--gres=none"]
    # The loss of a machine, or the end of a replica, does not end other steps: the coordinator decides.
    command += ["--no-kill", "--kill-on-bad-exit=0", f"--immediate={ROOM_S}", "--mpi=none"]
    _require_room(replica, run.cluster.processors_of(replica.role, replica.index), resources.cpus)
    return [*command, *persia_command(run)]


def _require_room(replica: Replica, pinned: str | None, cpus: int) -> None:
    """Raise ConfigError if a replica is pinned to more numbered processors than its step is given."""
    processors = numbers(pinned) if pinned and "node" not in pinned else frozenset[int]()
    if len(processors) > cpus:
        key = replica.role.replace("-", "_")
        raise ConfigError(
            f"cluster.pin.{key}={pinned} for {replica.name} are {len(processors)} processors, and Slurm gives it "
            f"{cpus}; set cluster.cpus.{key}={len(processors)}, or pin it to fewer"
        )


def persia_command(run: Run) -> list[str]:
    """Return the command that runs Persia, with the home folder in the place of a tilde."""
    first, *others = shlex.split(settings_of(run, SlurmCluster).persia)
    return [str(Path(first).expanduser()) if first.startswith("~") else first, *others]

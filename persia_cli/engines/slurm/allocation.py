"""The machines that Slurm has given to a job, as its script finds them."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from persia_cli.engines.slurm.machines import MachinePlace
from persia_cli.engines.slurm.programs import address_of, hosts_in, lost_among
from persia_cli.errors import RoleError, UserError
from persia_cli.wire.addresses import address_towards

JOB, NODES, GROUPS = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_HET_SIZE"
LOOPBACK = "127."


@dataclass(frozen=True, slots=True)
class Allocation:
    """A job's number, and its machines: of each component, if it is heterogeneous."""

    job: str
    groups: tuple[tuple[str, ...], ...]

    def group_of(self, place: MachinePlace) -> int | None:
        """Return the component of a machine; None if there is but one."""
        return min(place.kind, len(self.groups) - 1) if len(self.groups) > 1 else None

    def node_of(self, place: MachinePlace) -> str:
        """Return the name of a machine."""
        group = self.groups[self.group_of(place) or 0]
        return group[place.node % len(group)]

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
    own = _ip_of(node)
    if own.startswith(LOOPBACK) and others:
        own = address_towards(f"tcp://{_ip_of(others[0])}:1")
    return own


def _ip_of(node: str) -> str:
    name = address_of(node)
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise RoleError(f"there is no address for {name}, the machine {node}: {error.strerror}") from error

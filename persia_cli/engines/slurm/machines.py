"""The machines that a job asks Slurm for, and the one of each replica."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from persia_cli.config.schema import Run, SlurmCluster
from persia_cli.engines.engine import settings_of
from persia_cli.engines.placement import RANK, Resources, owner_of, resources_of
from persia_cli.errors import ConfigError
from persia_cli.plan.job import COORDINATOR, Replica, all_replicas

MIB = 2**20
SCRIPT, STEP = 512 * MIB, 32 * MIB
"""Memory of the job's script, and of srun for each replica; all of these are on the first machine."""


@dataclass(frozen=True, slots=True)
class MachineSlot:
    """The machine of a replica: its number among those of its kind."""

    kind: int
    """0, or 1 for the machines of NN workers with GPUs, where these have separate machines."""
    node: int


@dataclass(frozen=True, slots=True)
class MachineKind:
    """Machines that are alike: all of a job, or a component of a heterogeneous one."""

    nodes: int
    resources: Resources
    """Those of each machine: enough for all the replicas of any of them."""
    partition: str | None


def has_gpu_machines(run: Run) -> bool:
    """Return whether NN workers have separate machines, since these have GPUs."""
    settings = settings_of(run, SlurmCluster)
    has_separate = settings.gpu_nodes != 0 and settings.placement != "packed"
    return has_separate and resources_of(run, "nn-worker").gpus > 0


def slots_of(run: Run) -> Mapping[Replica, MachineSlot]:
    """Return the machine of each replica, in the order of start.

    The n-th replica of a role is on the n-th machine, round and round, unless `cluster.placement` puts it on
    another one's. The coordinator is on the first, where the script runs.
    """
    counts = _counts(run)

    def slot_of(replica: Replica) -> MachineSlot:
        # By default NN workers with GPUs have their machines for themselves.
        moves = replica.role == "embedding-worker" or settings_of(run, SlurmCluster).placement != "beside_servers"
        owner = owner_of(run, replica) if moves and replica.role != COORDINATOR else replica
        kind = int(owner.role == RANK and len(counts) > 1)
        return MachineSlot(kind, owner.index % counts[kind])

    return {replica: slot_of(replica) for replica in all_replicas(run)}


def machines_of(run: Run) -> list[MachineKind]:
    """Return the machines to ask for; raises ConfigError if some of them would have nothing to run."""
    slots, settings = slots_of(run), settings_of(run, SlurmCluster)
    partitions = [settings.partition, settings.gpu_partition or settings.partition]
    return [
        MachineKind(
            nodes, _most([_needed(run, slots, MachineSlot(kind, node)) for node in range(nodes)]), partitions[kind]
        )
        for kind, nodes in enumerate(_counts(run))
    ]


def mebibytes(memory: int) -> int:
    """Return bytes as Slurm counts memory."""
    return math.ceil(memory / MIB)


def _counts(run: Run) -> list[int]:
    """Return the number of machines of each kind."""
    settings = settings_of(run, SlurmCluster)
    servers, ranks = settings.embedding_servers, settings.nn_workers
    separate_loaders = settings.data_loaders if settings.placement == "beside_servers" else 0
    if settings.placement == "packed":
        _refuse_gpu_machines(settings)
        wanted, most = [settings.nodes or 1], [1]
    elif has_gpu_machines(run):
        wanted, most = [settings.nodes or servers, settings.gpu_nodes or ranks], [max(servers, separate_loaders), ranks]
    else:
        wanted, most = [settings.nodes or max(servers, ranks)], [max(servers, separate_loaders, ranks)]
    for key, count, limit in zip(("nodes", "gpu_nodes"), wanted, most, strict=False):
        if count > limit:
            raise ConfigError(
                f"cluster.{key}={count}: only {limit} would have a replica to run; ask for {limit}, or start more"
            )
    return wanted


def _refuse_gpu_machines(settings: SlurmCluster) -> None:
    for key, value in (("gpu_nodes", settings.gpu_nodes), ("gpu_partition", settings.gpu_partition)):
        if value:
            raise ConfigError(
                f"cluster.{key}={value}: cluster.placement=packed puts all on one machine; leave out one of them"
            )


def _needed(run: Run, slots: Mapping[Replica, MachineSlot], slot: MachineSlot) -> Resources:
    there = [resources_of(run, replica.role) for replica, at in slots.items() if at == slot]
    memory = sum(mebibytes(resources.memory) for resources in there) * MIB
    if slot == MachineSlot(0, 0):
        memory += SCRIPT + len(slots) * STEP
    return Resources(sum(resources.cpus for resources in there), memory, sum(resources.gpus for resources in there))


def _most(machines: list[Resources]) -> Resources:
    return Resources(*(max(getattr(resources, name) for resources in machines) for name in ("cpus", "memory", "gpus")))

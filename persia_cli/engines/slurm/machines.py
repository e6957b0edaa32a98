"""Which machines a job asks Slurm for, and which of them each replica is on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from persia_cli.config.schema import Run, Slurm
from persia_cli.engines.resources import Resources, resources_of
from persia_cli.errors import ConfigError
from persia_cli.plan.job import Replica, all_replicas

MIB = 2**20
SCRIPT, STEP = 512 * MIB, 32 * MIB
"""Memory of the job's script, and of srun for each replica; all of these are on the first machine."""


@dataclass(frozen=True, slots=True)
class MachinePlace:
    """The machine of a replica: its number among those of its kind."""

    kind: int
    """0, or 1 for the machines of NN workers with GPUs, where these have machines of their own."""
    node: int


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines that are alike: all of a job, or a component of a heterogeneous one."""

    nodes: int
    each: Resources
    """What each gives: enough for all the replicas of any of them."""
    partition: str | None


def settings_of(run: Run) -> Slurm:
    """Return what a run says of Slurm."""
    return run.cluster.slurm or Slurm()


def has_gpu_machines(run: Run) -> bool:
    """Return whether NN workers have machines of their own, since these have GPUs."""
    return resources_of(run, "nn-worker").gpus > 0 and settings_of(run).gpu_nodes != 0


def places_of(run: Run) -> Mapping[Replica, MachinePlace]:
    """Return the machine of each replica, in the order of start.

    The n-th replica of a role is on the n-th machine, round and round; an embedding worker is beside its server. The
    coordinator is on the first, where the script runs.
    """
    counts = _counts(run)

    def place(replica: Replica) -> MachinePlace:
        kind = int(replica.role == "nn-worker" and len(counts) > 1)
        index = replica.index
        if replica.role == "embedding-worker":
            index %= run.cluster.embedding_servers
        return MachinePlace(kind, index % counts[kind])

    return {replica: place(replica) for replica in all_replicas(run)}


def machines_of(run: Run) -> list[Machines]:
    """Return the machines to ask for; raises ConfigError if some of them would have nothing to run."""
    places, settings = places_of(run), settings_of(run)
    partitions = [settings.partition, settings.gpu_partition or settings.partition]
    return [
        Machines(
            nodes, _most([_needed(run, places, MachinePlace(kind, node)) for node in range(nodes)]), partitions[kind]
        )
        for kind, nodes in enumerate(_counts(run))
    ]


def mebibytes(memory: int) -> int:
    """Return bytes as Slurm counts memory."""
    return math.ceil(memory / MIB)


def _counts(run: Run) -> list[int]:
    """Return the number of machines of each kind."""
    settings, cluster = settings_of(run), run.cluster
    if has_gpu_machines(run):
        wanted = [settings.nodes or cluster.embedding_servers, settings.gpu_nodes or cluster.nn_workers]
        most = [max(cluster.embedding_servers, cluster.data_loaders), cluster.nn_workers]
    else:
        wanted = [settings.nodes or max(cluster.embedding_servers, cluster.nn_workers)]
        most = [max(cluster.embedding_servers, cluster.data_loaders, cluster.nn_workers)]
    for key, count, limit in zip(("nodes", "gpu_nodes"), wanted, most, strict=False):
        if count > limit:
            raise ConfigError(
                f"cluster.slurm.{key}={count}: only {limit} would have a replica to run; ask for {limit}, or start more"
            )
    return wanted


def _needed(run: Run, places: Mapping[Replica, MachinePlace], place: MachinePlace) -> Resources:
    there = [resources_of(run, replica.role) for replica, at in places.items() if at == place]
    memory = sum(mebibytes(each.memory) for each in there) * MIB
    if place == MachinePlace(0, 0):
        memory += SCRIPT + len(places) * STEP
    return Resources(sum(each.cpus for each in there), memory, sum(each.gpus for each in there))


def _most(machines: list[Resources]) -> Resources:
    return Resources(*(max(getattr(each, name) for each in machines) for name in ("cpus", "memory", "gpus")))

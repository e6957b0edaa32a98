"""The needs of a replica of each role, by the plan and `cluster.resources`, and the replica whose machine it shares."""

import math
from dataclasses import dataclass

from persia_cli.config.schema import Run, SpreadReplicas
from persia_cli.engines.engine import settings_of
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import COORDINATOR, Replica
from persia_cli.store.cold.geometry import log_memory

GIB = 2**30
CPUS = {"coordinator": 1, "embedding-server": 2, "embedding-worker": 1, "data-loader": 2}
"""A role's thread, and one more where it reads or writes files all the time. Those of NN workers are the user's."""
MEMORY = {
    "coordinator": GIB,
    "embedding-server": GIB,
    "embedding-worker": 2 * GIB,
    "data-loader": 2 * GIB,
    "nn-worker": 4 * GIB,
}
"""Of a process with its libraries and batches in flight; servers need that of their rows too."""
CHANGING = 0.05
"""Fraction of the memory of rows that a server needs for those that change while it saves."""
SERVER, RANK = "embedding-server", "nn-worker"


@dataclass(frozen=True, slots=True)
class Resources:
    """The needs of one replica."""

    cpus: int
    memory: int
    """Bytes."""
    gpus: int = 0


def resources_of(run: Run, role: str) -> Resources:
    """Return what a replica of a role needs: what the user says, else what is planned."""
    given = run.cluster.resources_of(role)
    cpus = given.cpus or CPUS.get(role) or run.train.threads + 1
    memory = given.memory or MEMORY[role] + (rows_of_server(run) if role == "embedding-server" else 0)
    gpus = 1 if role == "nn-worker" and run.train.device.startswith("cuda") else 0
    return Resources(cpus, memory, gpus if given.gpus is None else given.gpus)


def rows_of_server(run: Run) -> int:
    """Return the most bytes that rows and index of one server take."""
    servers, embedding = run.cluster.embedding_servers, run.embedding
    whole = embedding.memory
    if embedding.capacity is not None:
        groups = embedding_layout(run).feature_groups
        whole = sum(group.nbytes + log_memory(group, servers) for group in groups)
    # Partitions are the unit of placement, so one server may have one more than another.
    partitions = math.ceil(embedding.num_partitions / servers)
    return math.ceil(whole * partitions / embedding.num_partitions * (1 + CHANGING))


def owner_of(run: Run, replica: Replica) -> Replica:
    """Return the embedding server or NN worker on whose machine a replica is to run; for these, itself.

    The coordinator is on the machine of the first NN worker, and with `cluster.placement=packed` all are.
    """
    cluster = settings_of(run, SpreadReplicas)
    placement = cluster.placement
    if replica.role == COORDINATOR or placement == "packed":
        return Replica(RANK, 0)
    if replica.role == "embedding-worker" and placement == "beside_servers":
        return Replica(SERVER, replica.index % cluster.embedding_servers)
    if replica.role in ("embedding-worker", "data-loader"):
        return Replica(RANK, replica.index % cluster.nn_workers)
    return replica

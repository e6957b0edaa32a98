"""The replica on whose machine each other one is to run, so that they share memory."""

from persia_cli.config.schema import Run, SpreadReplicas
from persia_cli.engines.engine import settings_of
from persia_cli.plan.job import COORDINATOR, Replica

SERVER, RANK = "embedding-server", "nn-worker"


def beside(run: Run, replica: Replica) -> Replica:
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

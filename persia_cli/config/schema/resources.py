"""What replicas of each role need of a machine, for schedulers that ask."""

from persia_cli.config.schema.base import Few, Node
from persia_cli.config.schema.embedding import Bytes


class RoleCpus(Node):
    """Processors of one replica of each role; by default as many as it keeps busy."""

    coordinator: Few | None = None
    """Processors of the coordinator, by default 1."""
    embedding_server: Few | None = None
    """Processors of each embedding server, by default 2."""
    embedding_worker: Few | None = None
    """Processors of each embedding worker, by default 1."""
    data_loader: Few | None = None
    """Processors of each data loader, by default 2."""
    nn_worker: Few | None = None
    """Processors of each NN worker, by default `train.threads` and one more, which moves rows."""


class RoleMemory(Node):
    """Memory of one replica of each role, e.g. 4GiB; by default what its part of the job is planned to take."""

    coordinator: Bytes | None = None
    """Memory of the coordinator, by default 1 GiB."""
    embedding_server: Bytes | None = None
    """Memory of each embedding server, by default its share of `embedding.memory`, and 1 GiB."""
    embedding_worker: Bytes | None = None
    """Memory of each embedding worker, by default 2 GiB."""
    data_loader: Bytes | None = None
    """Memory of each data loader, by default 2 GiB."""
    nn_worker: Bytes | None = None
    """Memory of each NN worker, by default 4 GiB."""

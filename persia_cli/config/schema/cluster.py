"""How the job is laid out over processes."""

from typing import Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from persia_cli.config.schema.node import Node


class Cluster(Node):
    """Replicas of each role, how they talk, and how long they wait for each other."""

    kind: Literal["embedded", "local"]
    """`embedded` runs every role as a thread of one process, `local` as a process of this machine."""
    transport: Literal["ipc", "tcp"] = "ipc"
    """What processes talk over: Unix sockets or TCP on the loopback interface."""
    shared_memory: bool = True
    """Whether processes hand each other arrays in shared memory instead of through Unix sockets."""
    data_loaders: PositiveInt = 1
    """Replicas of the data loader."""
    embedding_workers: PositiveInt = 1
    """Replicas of the embedding worker."""
    embedding_servers: PositiveInt = 1
    """Replicas of the embedding server, each with its shard of every table."""
    nn_workers: PositiveInt = 1
    """Replicas of the NN worker: the world size of synchronous training."""
    start_timeout_s: PositiveFloat = 120.0
    """Seconds that all replicas may take to report ready."""
    silence_timeout_s: PositiveFloat = 30.0
    """Seconds after which a peer that gives no sign of life stops the job."""
    retry_s: PositiveFloat = 0.5
    """Seconds before an unanswered request is first sent again; doubled each time, up to 4 s."""
    stop_timeout_s: PositiveFloat = 5.0
    """Seconds between asking a replica to stop and killing it."""

    @model_validator(mode="after")
    def _one_process_has_one_rank(self) -> Self:
        if self.kind == "embedded" and self.nn_workers > 1:
            raise ValueError(
                f"cluster=embedded runs in one process and has exactly one NN worker, not {self.nn_workers}; "
                "use cluster=local for more"
            )
        return self

"""Common settings of every kind of cluster: the number of replicas of each role, and how long they wait."""

from typing import Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import Few, Node, Seconds
from persia_cli.config.schema.resources import PinnedTo, Role, RoleResources


class Replicas(Node):
    """Replicas of each role, and the time limits for waiting."""

    kind: str
    """Kind of the cluster: where replicas run."""
    data_loaders: Few = 1
    """Replicas of the data loader."""
    embedding_workers: Few = 1
    """Replicas of the embedding worker."""
    embedding_servers: Few = 1
    """Replicas of the embedding server, each with its shard of every table."""
    nn_workers: Few = 1
    """Replicas of the NN worker: the world size of synchronous training."""
    start_timeout_s: Seconds = 120.0
    """Seconds for all replicas to join, and then for all to report ready while none shows progress."""
    silence_timeout_s: Seconds = 30.0
    """Seconds without a message of a replica after which the job ends, or on several machines rolls back."""
    work_timeout_s: Seconds = 900.0
    """Longest time in seconds for one piece of work, such as a step, compiling the network, or writing weights."""
    retry_s: Seconds = 0.5
    """Seconds before an unanswered request is first sent again; doubled each time, up to 4 s."""
    stop_timeout_s: Seconds = 5.0
    """Seconds between asking a replica to stop and killing it."""

    def processors_of(self, role: str, index: int) -> str:
        """Return the processors to which a replica is pinned; empty if it may use all."""
        return ""


class ProcessReplicas(Replicas):
    """Replicas that are processes of machines whose processors and memory Persia sees."""

    shared_memory: bool = True
    """True: processes of one machine pass arrays through shared memory instead of sockets."""
    pin: dict[Role, PinnedTo] = Field(default_factory=dict)
    """Processors of their machines that the replicas of roles run on, e.g. {nn_worker: "0-3,8"}.

    `node:0` means those of a NUMA node, from which the memory of replicas comes too. A list has the processors of each
    replica: {embedding_server: [node:0, node:1]}. An NN worker needs at least `train.threads`.
    """

    @model_validator(mode="after")
    def _each_replica_is_pinned_once(self) -> Self:
        for role, given in self.pin.items():
            count = 1 if role == "coordinator" else getattr(self, f"{role}s")
            if isinstance(given, tuple) and len(given) != count:
                raise ValueError(
                    f"cluster.pin.{role} has a list of {len(given)}, and the number of replicas is {count}; give one "
                    "for each, or one text for all, such as '0-3,8'"
                )
        return self

    def processors_of(self, role: str, index: int) -> str:
        """Return the processors to which a replica is pinned; empty if it may use all."""
        given = next((given for name, given in self.pin.items() if name == role.replace("-", "_")), "")
        return given[index] if isinstance(given, tuple) else given


class SpreadReplicas(Replicas):
    """Replicas on several machines."""

    placement: Literal["beside_servers", "beside_ranks", "packed"] = "beside_servers"
    """Replicas that share a machine, and its memory: `packed` puts all on one.

    `beside_servers` puts each embedding worker next to an embedding server, `beside_ranks` next to an NN worker. With
    both, data loaders are next to NN workers, and servers are spread over the machines.
    """
    resources: dict[Role, RoleResources] = Field(default_factory=dict)
    """Resources of one replica of a role, if not as planned, e.g. {nn_worker: {cpus: 16, memory: 8GiB, gpus: 1}}."""

    @model_validator(mode="after")
    def _only_nn_workers_use_gpus(self) -> Self:
        for role, given in self.resources.items():
            if role != "nn_worker" and given.gpus is not None:
                raise ValueError(f"cluster.resources.{role}.gpus: only NN workers use GPUs; leave it out")
        return self

"""The processes of a job: how many there are of each role, and their time limits."""

from typing import Literal, Self

from pydantic import model_validator

from persia_cli.config.schema.base import Amount, Few, Node, Seconds
from persia_cli.config.schema.hosts import SshHosts
from persia_cli.config.schema.kubernetes import Kubernetes
from persia_cli.config.schema.ray import RaySettings
from persia_cli.config.schema.resources import RoleCpus, RoleMemory, RolePins
from persia_cli.config.schema.slurm import Slurm

ENGINES = ("hosts", "kubernetes", "ray", "slurm")
"""Kinds that start a job on other machines. The settings of each are in a key of its name, which others refuse."""
WITH_COMMAND = ("ray",)
"""Those of which the coordinator runs on the command's machine, so that plan and record are those of a local job."""


class Cluster(Node):
    """Replicas of each role, their transport, and the time limits for waiting."""

    kind: Literal["embedded", "local", "hosts", "kubernetes", "ray", "slurm"]
    """`embedded` runs every role as a thread of one process, `local` as a process of this machine.

    `hosts` runs them on machines that ssh reaches, `kubernetes` as pods of a cluster, `ray` on those of a Ray cluster,
    `slurm` as steps of a job of Slurm.
    """
    transport: Literal["ipc", "tcp"] = "ipc"
    """The transport between processes: Unix sockets, or TCP on the loopback interface.

    With either, only processes that hold the job's secret can take part. Other users of the machine can reach the ports
    of TCP: their messages are counted but not read, though a flood of them can slow a job.
    """
    encryption: Literal["auto", "curve", "none"] = "auto"
    """Which connections over TCP are encrypted (CURVE): `auto` means those that other machines can reach.

    `curve` means those on the loopback interface too; `none` means no connection. Encryption needs keys, which
    `persia keys new` makes; only processes that have them can connect.
    """
    key_file: str | None = None
    """File of the job's keys, private to its user; by default the one that PERSIA_KEY_FILE names."""
    trusted_network: bool = False
    """True: with `encryption=none`, roles may talk to other machines nevertheless.

    Whoever can listen to that network then sees the data, the rows and the job's token, and can take part in the job.
    """
    shared_memory: bool = True
    """True: processes pass arrays through shared memory instead of Unix sockets."""
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
    """Seconds without a sign of life from a replica after which the job stops."""
    work_timeout_s: Seconds = 900.0
    """Longest time in seconds for one piece of work, such as a step, compiling the network, or writing weights."""
    retry_s: Seconds = 0.5
    """Seconds before an unanswered request is first sent again; doubled each time, up to 4 s."""
    stop_timeout_s: Seconds = 5.0
    """Seconds between asking a replica to stop and killing it."""
    placement: Literal["beside_servers", "beside_ranks", "packed"] = "beside_servers"
    """Which replicas share a machine, and its memory: `packed` puts all on one.

    `beside_servers` puts each embedding worker beside an embedding server, `beside_ranks` beside an NN worker. With
    both, data loaders are beside NN workers, and servers are spread over the machines.
    """
    cpus: RoleCpus = RoleCpus()
    """How many processors a scheduler is asked for."""
    pin: RolePins = RolePins()
    """Which processors of their machines replicas run on, and with that from which NUMA node their memory comes."""
    memory: RoleMemory = RoleMemory()
    """Memory that a scheduler is asked for."""
    gpus: Amount | None = None
    """GPUs of each NN worker that a scheduler is asked for; by default 1 with `train.device=cuda`, else none."""
    hosts: SshHosts | None = None
    """The machines of `cluster=hosts`."""
    kubernetes: Kubernetes | None = None
    """The pods of `cluster=kubernetes`."""
    ray: RaySettings | None = None
    """The Ray cluster of `cluster=ray`."""
    slurm: Slurm | None = None
    """The machines of `cluster=slurm`."""

    @model_validator(mode="after")
    def _engines_have_their_own_settings(self) -> Self:
        for engine in ENGINES:
            if engine != self.kind and getattr(self, engine) is not None:
                raise ValueError(f"cluster.{engine} is for cluster={engine}, and this job has cluster={self.kind}")
        asked = self.cpus != RoleCpus() or self.memory != RoleMemory() or self.gpus is not None
        if self.kind not in ENGINES and asked:
            raise ValueError(f"cluster.cpus, memory and gpus are for other machines; cluster={self.kind} has this one")
        if self.kind not in ENGINES and self.placement != "beside_servers":
            raise ValueError(f"cluster.placement is for several machines; cluster={self.kind} has this one alone")
        return self

    @model_validator(mode="after")
    def _each_replica_is_pinned_once(self) -> Self:
        if self.pin == RolePins():
            return self
        if self.kind == "embedded":
            raise ValueError("cluster.pin is for processes, and cluster=embedded has only one; use cluster=local")
        if self.kind == "kubernetes":
            raise ValueError(
                "cluster.pin is not for cluster=kubernetes, whose CPU manager (policy static) pins pods; leave it out"
            )
        counts = {
            "coordinator": 1,
            "embedding_server": self.embedding_servers,
            "embedding_worker": self.embedding_workers,
            "data_loader": self.data_loaders,
            "nn_worker": self.nn_workers,
        }
        for role, count in counts.items():
            given = getattr(self.pin, role)
            if isinstance(given, tuple) and len(given) != count:
                raise ValueError(
                    f"cluster.pin.{role} has a list of {len(given)}, and the number of replicas is {count}; give one "
                    "for each, or one text for all, such as '0-3,8'"
                )
        return self

    @model_validator(mode="after")
    def _machines_talk_over_tcp(self) -> Self:
        if self.kind not in ENGINES:
            return self
        if self.transport != "tcp":
            raise ValueError(f"cluster={self.kind} is for several machines, which need transport=tcp")
        if self.encryption == "none":
            raise ValueError(f"cluster={self.kind} hands its own keys to every machine; leave out encryption=none")
        return self

    @model_validator(mode="after")
    def _there_is_something_to_encrypt(self) -> Self:
        if self.encryption == "curve" and (self.kind == "embedded" or self.transport == "ipc"):
            raise ValueError(
                "encryption=curve encrypts connections over TCP, and there are none; set transport=tcp"
                + (" and cluster=local" if self.kind == "embedded" else "")
            )
        if self.trusted_network and self.encryption != "none":
            raise ValueError(
                "trusted_network=true is for jobs that are not encrypted; set encryption=none too, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _one_process_has_one_rank(self) -> Self:
        if self.kind == "embedded" and self.nn_workers > 1:
            raise ValueError(
                f"cluster=embedded runs in one process and has exactly one NN worker, not {self.nn_workers}; "
                "use cluster=local for more"
            )
        return self

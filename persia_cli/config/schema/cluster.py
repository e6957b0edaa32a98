"""The processes of a job: replicas of each role, their resources and processors, and where they run."""

import re
import shlex
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from persia_cli.config.schema.base import NUMBER, Amount, Few, Node, Seconds
from persia_cli.config.schema.embedding import Bytes

Role = Literal["coordinator", "embedding_server", "embedding_worker", "data_loader", "nn_worker"]


class RoleResources(Node):
    """Resources of one replica of a role; by default those that its part of the job is planned to take."""

    cpus: Few | None = None
    """Processors, by default as many as it keeps busy."""
    memory: Bytes | None = None
    """Memory, e.g. 4GiB."""
    gpus: Amount | None = None
    """GPUs of an NN worker, by default 1 with `train.device=cuda`, else none."""


PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?|node:(\d{1,4})")
"""A processor, a range of them, or those of a NUMA node."""


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _is_list_of_processors(text: str) -> str:
    for part in text.split(","):
        part_of_list = PART.fullmatch(part)
        if part_of_list is None or (part_of_list[2] and int(part_of_list[1]) > int(part_of_list[2])):
            raise ValueError(f"{part or 'nothing'} is no processor; name some, such as 0-3,8 or node:0")
    return text


Processors = Annotated[str, AfterValidator(_is_list_of_processors), BeforeValidator(_text_of_number)]
"""Processors of a machine as Linux numbers them, such as `0-3,8`, or `node:0` for those of a NUMA node."""
PinnedTo = Processors | tuple[Processors, ...]
"""Processors for all replicas of a role, or a list with those of each."""


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
    is_spread: ClassVar[bool] = False
    """True: its engine trains on other machines, or on this one only as a part of a cluster."""
    is_one_process: ClassVar[bool] = False
    """True: all replicas are threads of the command's process."""

    @property
    def name(self) -> str:
        """The kind as messages name it; decisions are the engine's (`persia_cli/engines/engine.py`)."""
        return self.kind

    @property
    def has_processes_here(self) -> bool:
        """True if each replica is a process of this machine."""
        return not self.is_spread and not self.is_one_process

    @property
    def tcp_encryption(self) -> Literal["auto", "curve", "none"]:
        """Connections over TCP that are encrypted: with `auto`, those that other machines can reach."""
        return "auto"

    @property
    def loopback_is_tcp(self) -> bool:
        """True if processes of one machine talk by TCP, not by Unix sockets."""
        return False

    @property
    def passes_arrays_in_memory(self) -> bool:
        """True if processes of one machine pass arrays through shared memory."""
        return False

    @property
    def needs_keys(self) -> bool:
        """True if all connections over TCP are encrypted."""
        return self.is_spread or self.tcp_encryption == "curve"

    def processors_of(self, role: str, index: int) -> str:
        """Return the processors to which a replica is pinned; empty if it may use all."""
        return ""

    def resources_of(self, role: str) -> RoleResources:
        """Return the resources that the user sets for a replica of a role."""
        return RoleResources()


class ProcessReplicas(Replicas):
    """Replicas that are processes of machines whose processors and memory Persia sees."""

    shared_memory: bool = True
    """True: processes of one machine pass arrays through shared memory instead of sockets."""
    pin: dict[Role, PinnedTo] = Field(default_factory=dict)
    """Processors of their machines that the replicas of roles run on, e.g. {nn_worker: "0-3,8"}.

    `node:0` means those of a NUMA node, from which the memory of replicas comes too. A list has the processors of each
    replica: {embedding_server: [node:0, node:1]}. An NN worker needs at least `train.threads`.
    """

    @property
    def passes_arrays_in_memory(self) -> bool:
        """True if processes of one machine pass arrays through shared memory."""
        return self.shared_memory

    @model_validator(mode="after")
    def _lists_pin_all_replicas(self) -> Self:
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
    is_spread: ClassVar[bool] = True

    def resources_of(self, role: str) -> RoleResources:
        """Return the resources that the user sets for a replica of a role."""
        return next(
            (given for name, given in self.resources.items() if name == role.replace("-", "_")), RoleResources()
        )

    @model_validator(mode="after")
    def _only_nn_workers_use_gpus(self) -> Self:
        for role, given in self.resources.items():
            if role != "nn_worker" and given.gpus is not None:
                raise ValueError(f"cluster.resources.{role}.gpus: only NN workers use GPUs; leave it out")
        return self


class EmbeddedCluster(Replicas):
    """One process, of which each replica is a thread."""

    kind: Literal["embedded"]
    """`embedded`: every role is a thread of one process, with one NN worker."""
    is_one_process: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one_process_has_one_rank(self) -> Self:
        if self.nn_workers > 1:
            raise ValueError(
                f"cluster=embedded runs in one process and has exactly one NN worker, not {self.nn_workers}; "
                "use cluster=local for more"
            )
        return self


class LocalCluster(ProcessReplicas):
    """Processes of this machine."""

    kind: Literal["local"]
    """`local`: every replica is a process of this machine."""
    transport: Literal["ipc", "tcp"] = "ipc"
    """The transport between processes: Unix sockets, or TCP on the loopback interface.

    With either, only processes that hold the job's secret can take part. Other users of the machine can reach the ports
    of TCP: their messages are counted but not read, though a flood of them can slow a job.
    """
    encryption: Literal["auto", "curve", "none"] = "auto"
    """Encryption of connections over TCP (CURVE): `auto` encrypts those that other machines can reach.

    `curve` encrypts those on the loopback interface too. Encryption needs keys, which `persia keys new` makes; only
    processes that have them can connect. `none` is for roles that you start on machines of a network that you trust:
    every program that can listen there sees the data, the rows and the job's token, and can take part in the job.
    """

    @property
    def tcp_encryption(self) -> Literal["auto", "curve", "none"]:
        """Connections over TCP that are encrypted."""
        return self.encryption

    @property
    def loopback_is_tcp(self) -> bool:
        """True if processes of one machine talk by TCP, not by Unix sockets."""
        return self.transport == "tcp"

    @model_validator(mode="after")
    def _there_is_something_to_encrypt(self) -> Self:
        if self.encryption == "curve" and self.transport == "ipc":
            raise ValueError(
                "encryption=curve encrypts connections over TCP, and there are none; set cluster.transport=tcp"
            )
        return self


class SshHost(Node):
    """One machine."""

    ssh: Annotated[str, Field(min_length=1)]
    """Destination for ssh: a host's name, USER@NAME, or an alias of ~/.ssh/config."""
    address: str | None = None
    """IP address, or name, at which the other machines reach it; by default the one at which ssh does."""
    roles: tuple[str, ...] = ()
    """Replicas to run there: all replicas of a role (`nn-worker`), or single ones (`nn-worker-0`)."""


def _name_alone(value: Any) -> Any:
    return {"ssh": value} if isinstance(value, str) else value


class HostsCluster(ProcessReplicas, SpreadReplicas):
    """Machines that are reached by ssh, and how Persia is found there."""

    kind: Literal["hosts"]
    """`hosts`: every replica is a process of one of several machines, started there by ssh."""
    hosts: tuple[Annotated[SshHost, BeforeValidator(_name_alone)], ...] = ()
    """The machines; a name is short for `{ssh: NAME}`. Without `roles`, the first one gets the coordinator."""
    ssh: Annotated[str, Field(min_length=1)] = "ssh"
    """The ssh command, with any options, e.g. `ssh -F file`; the first machine uses it too. It must ask for nothing."""
    persia: Annotated[str, Field(min_length=1)] = "persia"
    """The command that runs Persia on the machines, as their shell reads it, e.g. `~/venv/bin/persia`."""
    folder: Annotated[str, Field(min_length=1)] = "persia-jobs"
    """Folder on the first machine for run directories; from the home folder on."""
    lost_s: ClassVar[float] = 300.0
    """Seconds without a connection to the first machine after which the command ends; the job goes on."""

    @field_validator("ssh")
    @classmethod
    def _is_a_command(cls, ssh: str) -> str:
        try:
            arguments = shlex.split(ssh)
        except ValueError as error:
            raise ValueError(f"a shell does not read it: {error}") from None
        if not arguments:
            raise ValueError("it is no command; leave it out for ssh")
        return ssh

    @model_validator(mode="after")
    def _are_different(self) -> Self:
        names = [host.ssh for host in self.hosts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"cluster.hosts has {twice[0]} twice; name each machine once")
        for host in self.hosts:
            if host.ssh.startswith("-"):
                raise ValueError(
                    f"cluster.hosts: {host.ssh} is an option of ssh and no machine; cluster.ssh has options"
                )
        return self


ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
"""The name of an object of the cluster."""


class Volume(Node):
    """A persistent volume that all pods of a job see."""

    claim: ObjectName
    """Name of the PersistentVolumeClaim."""
    path: Annotated[str, Field(pattern=r"^/[^:]*[^:/]$")]
    """Path where the pods see it, such as /data."""
    read_only: bool = True
    """False: roles may write to it, checkpoints say."""


class KubernetesCluster(SpreadReplicas):
    """The pods of a job, and what of the cluster they use."""

    kind: Literal["kubernetes"]
    """`kubernetes`: every replica is a pod."""
    image: Annotated[str, Field(min_length=1)] | None = None
    """Image with the command `persia`, such as one of the Dockerfile in Persia's sources. It has to be given."""
    run_claim: ObjectName | None = None
    """PersistentVolumeClaim for the run directory, of the coordinator alone.

    Without one the record goes with the coordinator's pod, and a job that ends early cannot go on.
    """
    volumes: tuple[Volume, ...] = ()
    """Persistent volumes for data or checkpoints."""
    environment_secrets: tuple[ObjectName, ...] = ()
    """Secrets whose keys become environment variables of all roles, such as AWS_ACCESS_KEY_ID."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the JobSet and of its pods, such as kueue.x-k8s.io/queue-name."""
    pod: dict[str, Any] = Field(default_factory=dict)
    """Additional settings of all pods, as Kubernetes names them, e.g. {spec: {nodeSelector: {pool: training}}}.

    It completes the template of a pod: tolerations, a service account, secrets that pull the image, annotations.
    """
    gpu: Annotated[str, Field(min_length=1)] = "nvidia.com/gpu"
    """Resource that stands for a GPU."""


class RayCluster(ProcessReplicas, SpreadReplicas):
    """The Ray cluster that a job requests capacity of, and the placement of its replicas there."""

    kind: Literal["ray"]
    """`ray`: every replica is a process of a machine that Ray chooses."""
    address: Annotated[str, Field(min_length=1)] | None = None
    """HOST:PORT of the cluster, by default the one that RAY_ADDRESS names or this machine belongs to."""


SlurmName = Annotated[str, Field(pattern=r"^[^\s'\"\\]+$")]
"""A name that Slurm knows."""
ShellLine = Annotated[str, Field(pattern=r"^[^\n\r]+$")]
Hours = Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False), NUMBER]


class SlurmCluster(ProcessReplicas, SpreadReplicas):
    """The machines of a job, and what of the cluster it may use."""

    kind: Literal["slurm"]
    """`slurm`: every replica is a step of a job of Slurm."""
    nodes: Few | None = None
    """Machines; by default as many as there are embedding servers, or NN workers without separate machines."""
    gpu_nodes: Amount | None = None
    """Machines for NN workers with GPUs alone, by default one for each; 0 puts them on the others, which need GPUs."""
    partition: SlurmName | None = None
    """Partition of all machines; by default the cluster's."""
    gpu_partition: SlurmName | None = None
    """Partition of machines for NN workers with GPUs alone, by default `partition`."""
    gpu: SlurmName = "gpu"
    """The generic resource that stands for a GPU, such as `gpu:a100`."""
    hours: Hours | None = None
    """Time limit of one turn, by default the partition's. Near its end the job is saved, and queued again."""
    options: tuple[Annotated[ShellLine, Field(pattern=r"^--[a-z]")], ...] = ()
    """Other options of sbatch for all machines, such as `--constraint=avx512` or `--account=ranking`."""
    setup: tuple[ShellLine, ...] = ()
    """Lines of shell that the script begins with, such as `module load python`."""
    persia: Annotated[ShellLine, Field(min_length=1)] = "persia"
    """The command that runs Persia on the machines, e.g. `~/venv/bin/persia`."""

    @field_validator("persia")
    @classmethod
    def _is_a_command(cls, persia: str) -> str:
        if "$" in persia or "`" in persia:
            raise ValueError("no shell expands it on the machines; write it out, or set PATH in cluster.setup")
        first, *_ = [*shlex.split(persia), ""]  # raises ValueError for a quote without an end
        if not first:
            raise ValueError("it is empty; name a command, such as persia")
        return persia

    @model_validator(mode="after")
    def _is_for_gpus(self) -> Self:
        if self.gpu_partition is not None and self.gpu_nodes == 0:
            raise ValueError("cluster.gpu_partition is for separate machines, and gpu_nodes=0 asks for none")
        return self


Cluster = Annotated[
    EmbeddedCluster | LocalCluster | HostsCluster | KubernetesCluster | RayCluster | SlurmCluster,
    Field(discriminator="kind"),
]

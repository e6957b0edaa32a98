"""A job on Kubernetes."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import NUMBER, Amount, Node
from persia_cli.config.schema.replicas import SpreadReplicas

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
"""The name of an object of the cluster."""
UserId = Annotated[int, Field(gt=0, lt=2**31), NUMBER]


class Volume(Node):
    """A persistent volume that all pods of a job see."""

    claim: Name
    """Name of the PersistentVolumeClaim."""
    path: Annotated[str, Field(pattern=r"^/[^:]*[^:/]$")]
    """Where the pods see it, such as /data."""
    read_only: bool = True
    """False: roles may write to it, checkpoints say."""


class Toleration(Node):
    """A taint of nodes on which the pods may run nevertheless."""

    key: str | None = None
    """The taint's key; by default every key, with `operator=Exists`."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Equal` compares the taint's value too."""
    value: str | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; by default every effect."""

    @model_validator(mode="after")
    def _has_what_its_operator_compares(self) -> Self:
        if self.operator == "Equal" and self.key is None:
            raise ValueError("a toleration without a key is for all taints; set operator: Exists")
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("operator: Exists compares no value; leave out one of them")
        return self


class KubernetesCluster(SpreadReplicas):
    """The pods of a job, and what of the cluster they use."""

    kind: Literal["kubernetes"]
    """`kubernetes`: every replica is a pod."""
    image: Annotated[str, Field(min_length=1)] | None = None
    """Image with the command `persia`, such as one of the Dockerfile in Persia's sources. It has to be given."""
    namespace: Name | None = None
    """Namespace of all objects; by default the one that kubectl uses."""
    key_secret: Name | None = None
    """Secret with the job's keys, made by `persia keys new`, under `keys`; by default NAME-keys."""
    run_claim: Name | None = None
    """PersistentVolumeClaim for the run directory, of the coordinator alone.

    Without one the record goes with the coordinator's pod, and a job that ends early cannot go on.
    """
    volumes: tuple[Volume, ...] = ()
    """Persistent volumes for data or checkpoints."""
    environment_secrets: tuple[Name, ...] = ()
    """Secrets whose keys become environment variables of all roles, such as AWS_ACCESS_KEY_ID."""
    service_account: Name | None = None
    """Service account of the pods, for access to a cloud's storage; no token of the cluster's own API is mounted."""
    pull_secrets: tuple[Name, ...] = ()
    """Secrets by which the image is pulled."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that pods may run on."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes on which the pods may run nevertheless."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the JobSet and of its pods, such as kueue.x-k8s.io/queue-name."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the JobSet and of its pods."""
    user: UserId = 1000
    """User and group that the pods run as; root is refused."""
    gpu: Annotated[str, Field(min_length=1)] = "nvidia.com/gpu"
    """Resource that stands for a GPU."""
    max_restarts: Amount = 3
    """Times that the whole job is started again, from its newest checkpoint, after a failure."""

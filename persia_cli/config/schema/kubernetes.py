"""A job on Kubernetes."""

from typing import Annotated, Any, Literal

from pydantic import Field

from persia_cli.config.schema.base import Node
from persia_cli.config.schema.replicas import SpreadReplicas

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
"""The name of an object of the cluster."""


class Volume(Node):
    """A persistent volume that all pods of a job see."""

    claim: Name
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
    run_claim: Name | None = None
    """PersistentVolumeClaim for the run directory, of the coordinator alone.

    Without one the record goes with the coordinator's pod, and a job that ends early cannot go on.
    """
    volumes: tuple[Volume, ...] = ()
    """Persistent volumes for data or checkpoints."""
    environment_secrets: tuple[Name, ...] = ()
    """Secrets whose keys become environment variables of all roles, such as AWS_ACCESS_KEY_ID."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the JobSet and of its pods, such as kueue.x-k8s.io/queue-name."""
    pod: dict[str, Any] = Field(default_factory=dict)
    """Additional settings of all pods, as Kubernetes names them, e.g. {spec: {nodeSelector: {pool: training}}}.

    It completes the template of a pod: tolerations, a service account, secrets that pull the image, annotations.
    """
    gpu: Annotated[str, Field(min_length=1)] = "nvidia.com/gpu"
    """Resource that stands for a GPU."""

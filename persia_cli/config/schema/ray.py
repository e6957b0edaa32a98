"""The Ray cluster of a job, and its pods where KubeRay makes one."""

from typing import Annotated, Literal

from pydantic import Field

from persia_cli.config.schema.base import Node, Seconds
from persia_cli.config.schema.kubernetes import Name, Volume


class RayPods(Node):
    """The pods of a Ray cluster that KubeRay makes for one job, and ends with it."""

    image: Annotated[str, Field(min_length=1)]
    """Image with the commands `persia` and `ray`."""
    namespace: Name | None = None
    """Namespace of all objects; by default the one that kubectl uses."""
    run_claim: Name | None = None
    """PersistentVolumeClaim for the run directory, of the head alone.

    Without one the record goes with the head's pod, and a job that ends early cannot go on.
    """
    volumes: tuple[Volume, ...] = ()
    """Persistent volumes for data or checkpoints."""
    environment_secrets: tuple[Name, ...] = ()
    """Secrets whose keys become environment variables of all pods, such as AWS_ACCESS_KEY_ID."""
    service_account: Name | None = None
    """Service account of the pods, for access to a cloud's storage."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that pods may run on."""
    gpu: Annotated[str, Field(min_length=1)] = "nvidia.com/gpu"
    """Resource that stands for a GPU."""


class RaySettings(Node):
    """The Ray cluster that a job asks for room, and how its replicas are to lie there."""

    address: Annotated[str, Field(min_length=1)] | None = None
    """HOST:PORT of the cluster, by default the one that RAY_ADDRESS names or this machine belongs to."""
    strategy: Literal["spread", "pack", "strict_spread"] = "spread"
    """`spread` puts bundles on different machines where there are enough, `strict_spread` always; `pack` on few."""
    room_s: Seconds = 600.0
    """Seconds to wait until the cluster has room for all bundles, or for one whose machine has gone."""
    pods: RayPods | None = None
    """With it, `--render` prints a RayJob for KubeRay, whose cluster has a pod for each bundle."""

"""A job on a Ray cluster."""

from typing import Annotated, Literal

from pydantic import Field

from persia_cli.config.schema.replicas import ProcessReplicas, SpreadReplicas


class RayCluster(ProcessReplicas, SpreadReplicas):
    """The Ray cluster that a job requests capacity of, and the placement of its replicas there."""

    kind: Literal["ray"]
    """`ray`: every replica is a process of a machine that Ray chooses."""
    address: Annotated[str, Field(min_length=1)] | None = None
    """HOST:PORT of the cluster, by default the one that RAY_ADDRESS names or this machine belongs to."""

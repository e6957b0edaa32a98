"""The processes of a job and where they run, by kind of cluster; those of other machines have separate files."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.hosts import HostsCluster
from persia_cli.config.schema.kubernetes import KubernetesCluster
from persia_cli.config.schema.ray import RayCluster
from persia_cli.config.schema.replicas import ProcessReplicas, Replicas
from persia_cli.config.schema.slurm import SlurmCluster

ENGINES = ("hosts", "kubernetes", "ray", "slurm")
"""Kinds that start a job on other machines."""


class EmbeddedCluster(Replicas):
    """One process, of which each replica is a thread."""

    kind: Literal["embedded"]
    """`embedded`: every role is a thread of one process, with one NN worker."""

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

    @model_validator(mode="after")
    def _there_is_something_to_encrypt(self) -> Self:
        if self.encryption == "curve" and self.transport == "ipc":
            raise ValueError(
                "encryption=curve encrypts connections over TCP, and there are none; set cluster.transport=tcp"
            )
        return self


Cluster = Annotated[
    EmbeddedCluster | LocalCluster | HostsCluster | KubernetesCluster | RayCluster | SlurmCluster,
    Field(discriminator="kind"),
]

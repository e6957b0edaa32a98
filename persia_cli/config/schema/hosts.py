"""A job that is started by ssh."""

import shlex
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from persia_cli.config.schema.base import Node
from persia_cli.config.schema.replicas import ProcessReplicas, SpreadReplicas


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
    def _is_words(cls, ssh: str) -> str:
        try:
            words = shlex.split(ssh)
        except ValueError as error:
            raise ValueError(f"a shell does not read it: {error}") from None
        if not words:
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

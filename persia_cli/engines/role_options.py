"""The options of `persia launch-role`, their check, and the arguments by which an engine starts a replica."""

import os
from dataclasses import dataclass
from pathlib import Path

from persia_cli.config.schema import Cluster, Run
from persia_cli.engines.driver_input import STDIN
from persia_cli.engines.key_files import context_of, key_file_of, key_file_of_coordinator
from persia_cli.errors import ConfigError
from persia_cli.plan.job import ROLES, Replica
from persia_cli.roles.start import RoleStart
from persia_cli.wire.addresses import check_between_processes, check_free, check_reachable
from persia_cli.wire.secret import TOKEN, read_keys, read_secret, read_token
from persia_cli.wire.sockets import Context

AUTO, POD_INDEX = "auto", "JOB_COMPLETION_INDEX"
"""The index that Kubernetes gives each pod of an Indexed Job, in an environment variable."""


def index_of(text: str) -> int:
    """Return the index that a user or, with `auto`, Kubernetes gives a replica; raises ConfigError if it is none."""
    given = os.environ.get(POD_INDEX, "") if text == AUTO else text
    if text == AUTO and not given:
        raise ConfigError(f"--index auto is for pods of an Indexed Job of Kubernetes: {POD_INDEX} is not set")
    if not (given.isascii() and given.isdigit()):
        what = f"--index auto: {POD_INDEX}" if text == AUTO else "--index"
        raise ConfigError(f"{what} {given}: expected a number from 0 on")
    return int(given)


@dataclass(frozen=True)
class RoleOptions(RoleStart):
    """The options of `persia launch-role`.

    `token_file` has the job's token; a coordinator writes it if it does not exist, by default in its `run_dir`.
    `key_file` has the job's keys, if it has any. `trusts_network` lets a role other than the coordinator, which knows
    from its run, talk to other machines without keys.
    """

    run_dir: Path | None = None
    token_file: Path | None = None
    key_file: Path | None = None
    trusts_network: bool = False
    cpus: str | None = None
    """Processors to which its process is kept."""

    def arguments(self) -> list[str]:
        """Return the options as arguments of `persia launch-role`, but for those of a single process."""
        arguments = [self.role, "--index", str(self.index), "--coordinator", self.coordinator]
        given = {
            "bind": self.bind,
            "advertise": self.advertise,
            "run-dir": self.run_dir,
            "token-file": self.token_file,
            "key-file": self.key_file,
            "cpus": self.cpus,
        }
        arguments += [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
        return arguments + ["--trusted-network"] * self.trusts_network

    def check(self) -> None:
        """Raise ConfigError or AddressError if the options are not valid."""
        if self.role not in ROLES:
            raise ConfigError(f"there is no role {self.role!r}; the roles are {', '.join(ROLES)}")
        if self.role == "coordinator":
            self._check_coordinator()
        else:
            self._check_other()

    def _check_coordinator(self) -> None:
        if self.index:
            raise ConfigError(f"--index {self.index}: a job has one coordinator; use --index 0")
        if self.run_dir is None:
            raise ConfigError("the coordinator needs --run-dir, the folder of its run")
        check_between_processes(self.coordinator, allows_remote=True)
        if self.advertise is not None:
            check_reachable(self.advertise, allows_remote=True)
        check_between_processes(self.listens_at, allows_remote=True)
        check_free(self.listens_at)
        if self.trusts_network:
            raise ConfigError("--trusted-network: the coordinator knows by cluster.encryption=none; leave it out")
        if self.token_file is not None and self.token_file.exists():
            read_token(self.token_file)
        elif self.token_file is not None and not self.token_file.absolute().parent.is_dir():
            raise ConfigError(f"--token-file {self.token_file}: the folder does not exist; create it first")

    def _check_other(self) -> None:
        if self.run_dir is not None:
            raise ConfigError(f"{self.role} gets its run directory from the coordinator; leave out --run-dir")
        is_remote = self.secret_file != self.token_file or self.trusts_network
        check_reachable(self.coordinator, is_remote)
        if self.bind is not None and self.advertise is not None:
            check_reachable(self.advertise, is_remote)
        listens_at = self.bind or self.advertise
        if listens_at is not None:
            check_between_processes(listens_at, is_remote)
            check_free(listens_at)
        if self.secret_file is None:
            raise ConfigError(
                f"{self.role} needs --token-file, the file with the job's token: RUN_DIR/{TOKEN} of its coordinator; "
                "or --key-file, if the job has keys"
            )
        if self.secret_file != self.token_file:
            read_keys(self.secret_file)  # so that a wrong one is named before anything starts

    @property
    def secret_file(self) -> Path | None:
        """File of the job's keys or token, for a role other than the coordinator."""
        return key_file_of(self.key_file, self.token_file) or self.token_file

    def require_keys(self, cluster: Cluster) -> Path | None:
        """Return the coordinator's file of keys, if its job has keys; raises UserError if it needs some, or others."""
        file = key_file_of_coordinator(self.key_file, self.token_file, cluster, self.listens_at)
        if file is not None:
            read_keys(file)
        return file

    def context(self) -> Context:
        """Return the context of a role other than the coordinator; its secret file has to be there."""
        assert self.secret_file is not None
        return context_of(read_secret(self.secret_file), self.trusts_network)

    @property
    def listens_at(self) -> str:
        """Address at which a coordinator listens."""
        return self.bind or self.coordinator


def arguments_of(run: Run, replica: Replica, coordinator: str, advertise: str = "") -> list[str]:
    """Return the arguments of a replica that gets the keys by its standard input."""
    cpus = run.cluster.processors_of(replica.role, replica.index)
    return role_arguments(replica.role, replica.index, coordinator, advertise=advertise, cpus=cpus)


def role_arguments(
    role: str, index: int | str, coordinator: str, key_file: str = STDIN, advertise: str = "", cpus: str = ""
) -> list[str]:
    """Return the arguments, without those that find Persia itself; an engine may have its machines fill in variables.

    Others reach the replica at `advertise`, by default at the address of the route to the coordinator. Without a
    `key_file` it gets the keys by its standard input, and ends with that.
    """
    arguments = ["launch-role", role, "--index", str(index), "--coordinator", coordinator, "--key-file", key_file]
    arguments += ["--advertise", advertise] if advertise else []
    arguments += ["--cpus", cpus] if cpus else []
    return [*arguments, "--attached" if key_file == STDIN else "--supervise"]

"""The command lines by which ssh starts something on a machine, and the facts that a machine first prints."""

import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from persia_cli.cgroups import memory_bytes
from persia_cli.config.schema import HostsCluster, SshHost
from persia_cli.engines.affinity import processors_here
from persia_cli.engines.child import LOST, failure_in
from persia_cli.errors import ConfigError, PersiaError, RoleError, UserError
from persia_cli.plan.pinning import MachineProcessors
from persia_cli.version import __version__

NOT_FOUND = (126, 127)
"""Exit codes of a shell that cannot start a command."""
NO_MODULE = "No module named persia_cli"
OPTIONS = {
    "BatchMode": "yes",  # a question for a password would never be answered
    "ConnectTimeout": "15",
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "3",
}
"""Those that the user gives come first, and of two ssh takes the first."""
ANSWER_S = 60.0


def ssh_command(hosts: HostsCluster, host: SshHost, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `persia WORDS` on a machine, in the folder of its jobs."""
    return [*ssh_arguments(hosts, host), remote_command(hosts, arguments)]


def ssh_arguments(hosts: HostsCluster, host: SshHost, terminal: bool = False) -> list[str]:
    """Return the arguments before the command of a machine's shell, which has a terminal if this process has one."""
    options = [word for key, value in OPTIONS.items() for word in ("-o", f"{key}={value}")]
    return [*shlex.split(hosts.ssh), "-t" if terminal else "-T", *options, host.ssh]


def remote_command(hosts: HostsCluster, arguments: Sequence[str]) -> str:
    """Return the same for the machine's shell, which finds Persia itself as the user says."""
    return f"{in_folder(hosts)} && {hosts.persia} {shlex.join(arguments)}"


def in_folder(hosts: HostsCluster) -> str:
    """Return the command of a shell that goes to the folder of a machine's jobs."""
    folder = _from_home(hosts.folder)
    return f"mkdir -p {folder} && cd {folder}"


def run_on(
    hosts: HostsCluster, host: SshHost, arguments: Sequence[str], given: str, limit_s: float, what: str
) -> "subprocess.CompletedProcess[str]":
    """Run `persia WORDS` on a machine with `given` as its input, and return its end, with what it prints.

    Raises UserError or RoleError, with the machine and `what` was to be done there, if that fails.
    """
    command = ssh_command(hosts, host, arguments)
    try:
        # A machine may have any encoding. Ctrl-C is for this process, which waits for the end.
        ended = subprocess.run(
            command,
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise RoleError(f"{what} on {host.ssh}: ssh has not ended after {limit_s:g} s") from None
    except OSError as error:
        raise UserError(f"cluster.ssh={hosts.ssh}: cannot be run, {error.strerror}") from error
    if ended.returncode:
        raise failure(hosts, host, ended, what)
    return ended


def failure(hosts: HostsCluster, host: SshHost, ended: "subprocess.CompletedProcess[str]", what: str) -> PersiaError:
    """Return why `what` was not done on a machine."""
    code, errors = ended.returncode, ended.stderr
    why = failure_in(errors)
    if code == LOST or code < 0:
        return UserError(f"{host.ssh} is not reached by ssh: {why}; `{hosts.ssh} {host.ssh} true` has to work unasked")
    if code in NOT_FOUND or NO_MODULE in errors:
        return UserError(
            f"{host.ssh} does not find Persia by `{hosts.persia}`: {why}; install it there, or set cluster.persia"
        )
    kind = UserError if code == UserError.exit_code else RoleError
    return kind(f"{what} on {host.ssh}: {why}")


def _from_home(folder: str) -> str:
    """Return a folder quoted for a shell, but for a tilde at its beginning."""
    if folder == "~":
        return folder
    return f"~/{shlex.quote(folder[2:])}" if folder.startswith("~/") else shlex.quote(folder)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The version of Persia on a machine, the memory in bytes that processes may use, and the processors."""

    version: str
    memory: int
    processors: MachineProcessors


def facts_of_host() -> HostFacts:
    """Return the facts of this machine."""
    return HostFacts(__version__, memory_bytes(), processors_here())


def facts_in_json() -> str:
    """Return the facts of this machine as one line."""
    return json.dumps(asdict(facts_of_host()))


def ask(hosts: HostsCluster, host: SshHost) -> HostFacts:
    """Return the facts of a machine; raises UserError or RoleError if it cannot be used."""
    text = run_on(hosts, host, ["on-host"], "", ANSWER_S, "the first call").stdout
    answer: Any = None
    try:
        answer = json.loads(text.splitlines()[-1])
        facts = msgspec.convert(answer, HostFacts, str_keys=True)
    except (ValueError, LookupError, TypeError):
        if isinstance(answer, dict):  # another version may print other facts
            _require_version(host.ssh, str(answer.get("version")))
        raise RoleError(f"{host.ssh} answers what persia {__version__} does not: {text[:80]!r}") from None
    _require_version(host.ssh, facts.version)
    return facts


def _require_version(name: str, version: str) -> None:
    if version != __version__:
        raise ConfigError(
            f"{name} has persia {version}, and the first machine {__version__}; install the same version on both"
        )

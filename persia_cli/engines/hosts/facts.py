"""Facts about a machine, which it prints before a job is started on it."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from persia_cli.cgroups import memory_bytes
from persia_cli.config.schema import HostsCluster, SshHost
from persia_cli.engines.affinity import processors_here
from persia_cli.engines.hosts.ssh import run_on
from persia_cli.errors import ConfigError, RoleError
from persia_cli.plan.pinning import MachineProcessors
from persia_cli.version import __version__

ANSWER_S = 60.0


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
    said: Any = None
    try:
        said = json.loads(text.splitlines()[-1])
        facts = msgspec.convert(said, HostFacts, str_keys=True)
    except (ValueError, LookupError, TypeError):
        if isinstance(said, dict):  # another version may print other facts
            _require_version(host.ssh, str(said.get("version")))
        raise RoleError(f"{host.ssh} answers what persia {__version__} does not: {text[:80]!r}") from None
    _require_version(host.ssh, facts.version)
    return facts


def _require_version(name: str, version: str) -> None:
    if version != __version__:
        raise ConfigError(
            f"{name} has persia {version}, and the first machine {__version__}; install the same version on both"
        )

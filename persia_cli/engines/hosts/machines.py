"""What machines say about themselves before a job is started on them, and whether it can be."""

import ipaddress
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from persia_cli import __version__
from persia_cli.config.schema import HostsCluster, Run, SshHost
from persia_cli.engines.hosts.placement import Placement
from persia_cli.engines.hosts.remote import run_on
from persia_cli.engines.hosts.session import HostFacts
from persia_cli.engines.resources import rows_of_server
from persia_cli.errors import ConfigError, PersiaError, RoleError
from persia_cli.plan.pinning import require_processors

ANSWER_S = 60.0
MOST_AT_ONCE = 16


def reached(hosts: HostsCluster, machines: Sequence[SshHost]) -> list[SshHost]:
    """Return those of the machines that can be used now."""

    def answers(host: SshHost) -> bool:
        try:
            run_on(hosts, host, ["on-host"], "", ANSWER_S, "a call")
        except PersiaError:
            return False
        return True

    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return [host for host, answered in zip(machines, pool.map(answers, machines), strict=True) if answered]


def ask(hosts: HostsCluster, machines: Sequence[SshHost]) -> dict[str, HostFacts]:
    """Return the facts of each machine by its name; raises UserError or RoleError for the first that cannot be used."""
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        said = list(pool.map(lambda host: run_on(hosts, host, ["on-host"], "", ANSWER_S, "the first call"), machines))
    return {host.ssh: _facts(host, ended.stdout) for host, ended in zip(machines, said, strict=True)}


def _facts(host: SshHost, text: str) -> HostFacts:
    said: Any = None
    try:
        said = json.loads(text.splitlines()[-1])["facts"]
        return msgspec.convert(said, HostFacts, str_keys=True)
    except (ValueError, LookupError, TypeError):
        if isinstance(said, dict):  # another version may say other things of its machine
            _require_version(host.ssh, str(said.get("version")))
        raise RoleError(f"{host.ssh} answers what persia {__version__} does not: {text[:80]!r}") from None


def _require_version(name: str, version: str) -> None:
    if version != __version__:
        raise ConfigError(f"{name} has persia {version}, and this machine {__version__}; install the same on both")


def require_usable(run: Run, placement: Placement, facts: Mapping[str, HostFacts]) -> None:
    """Raise ConfigError for a machine with another version of Persia, too little memory for its rows, or other
    processors than those that its replicas are pinned to.
    """
    for name, found in facts.items():
        _require_version(name, found.version)
        servers = sum(host.ssh == name for replica, host in placement.items() if replica.role == "embedding-server")
        wanted = servers * rows_of_server(run)
        if wanted > found.memory:
            raise ConfigError(
                f"{name} has {found.memory / 2**30:.1f} GiB of memory, and the rows of its embedding servers may take "
                f"{wanted / 2**30:.1f} GiB; lower embedding.memory, or place fewer servers there"
            )
    for replica, host in placement.items():
        require_processors(run, replica, facts[host.ssh].processors, host.ssh)


def address_of_coordinator(placement: Placement, facts: Mapping[str, HostFacts]) -> str:
    """Return where the coordinator is to listen; raises ConfigError if the other machines would not reach it there."""
    first = next(iter(placement.values()))
    address = first.address or facts[first.ssh].address
    if not address:
        raise ConfigError(f"{first.ssh} does not say at which address ssh reaches it; {_give(first)}")
    several = len({host.ssh for host in placement.values()}) > 1
    try:
        is_alone = ipaddress.ip_address(address).is_loopback
    except ValueError:
        is_alone = False  # a name
    if ":" in address:
        raise ConfigError(f"{first.ssh} is reached at {address}, an IPv6 address; {_give(first)}")
    if several and is_alone:
        raise ConfigError(f"{first.ssh} is reached at {address}, where no other machine reaches it; {_give(first)}")
    return f"tcp://{address}:*"


def _give(host: SshHost) -> str:
    return f"give the one that the other machines reach: cluster.hosts=[{{ssh: {host.ssh}, address: IP}}, …]"

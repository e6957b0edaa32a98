"""Ray on hosts of a lab: each host is a node of one cluster, which demands a token."""

import importlib.util
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.conftest import poll_for
from tests.support.hosts import Host, HostProcess, argv_of, processes_on

PORT = 6379
START_S = 120.0
TOKEN, RUN = Path("/tmp/ray.token"), Path("/tmp/run")
"""Paths on the hosts; each host has its own files there."""
SIZE = ["--num-cpus=8", "--num-gpus=0", f"--memory={32 * 2**30}", f"--object-store-memory={2**27}"]
OPTIONS = ["--disable-usage-stats", "--include-log-monitor=false", "--temp-dir=/tmp/ray", "--block"]
QUICK = {"period_ms": "1000", "timeout_ms": "2000", "failure_threshold": "5", "initial_delay_ms": "1000"}
"""Seconds after which Ray considers a machine lost."""
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": str(TOKEN),
    **{f"RAY_health_check_{name}": value for name, value in QUICK.items()},
}

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: persia-cli[ray]")
"""Mark of tests that need Ray."""


@contextmanager
def ray_on(hosts: Sequence[Host], logs: Path) -> Iterator[str]:
    """Yield the address of a Ray cluster of these hosts, the first its head, with the arguments of a job there."""
    first = hosts[0]
    token = secrets.token_hex(32)
    nodes: list[HostProcess] = []
    try:
        for host in hosts:
            place = host.root / TOKEN.relative_to("/")
            place.write_text(token)
            place.chmod(0o600)
            join = ["--head", f"--port={PORT}", "--include-dashboard=false"]
            join = join if host is first else [f"--address={first.address}:{PORT}"]
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={host.address}"]
            log = logs / f"ray-{host.name}.log"
            with log.open("wb") as output:
                node = host.start([*command, *join, *SIZE, *OPTIONS], output, ENVIRONMENT)
            nodes.append(node)
            poll_for(lambda log=log, node=node: _is_up(log, node), START_S, f"Ray on {host.name}")
        yield f"{first.address}:{PORT}"
    finally:
        for node in nodes:
            node.kill()


def _is_up(log: Path, node: HostProcess) -> bool:
    assert node.poll() is None, log.read_text()
    return "Ray runtime started" in log.read_text()


def commands_on(host: Host, *words: str) -> list[psutil.Process]:
    """Return the processes of a host whose command lines have all these arguments."""
    return [process for process in processes_on(host) if set(words) <= set(argv_of(process))]


def replicas_on(host: Host, role: str) -> list[psutil.Process]:
    """Return the processes of a role on a host, without their supervisors."""
    return commands_on(host, "launch-role", role, "--incarnation")


def actor_of(replica: psutil.Process) -> psutil.Process:
    """Return the process of a replica's actor, which is the parent of its supervisor."""
    supervisor = replica.parent()
    assert supervisor is not None
    actor = supervisor.parent()
    assert actor is not None
    return actor

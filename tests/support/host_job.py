"""A job whose roles are started by hand on several hosts of a lab."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from persia_cli.engines.job import COORDINATOR_ADDRESS, JobResult, result_of
from persia_cli.observe.journal import METRICS
from persia_cli.wire.secret import JobKeys, new_keys, write_keys
from tests.conftest import poll_for
from tests.support.hosts import Host, HostProcess

PORT = 7000
LIMIT_S = 150.0
PROGRAM = ("-m", "persia_cli")
RUN, KEYS = Path("/tmp/run"), Path("/tmp/keys")
"""Paths on the hosts; each host has its own files there."""
NO_FILES = ["checkpoint={at_end: false, every_minutes: null}"]
"""Arguments of a job that writes nothing but the record of its coordinator."""

Placement = Mapping[str, Host]
"""Each replica of the job, such as `nn-worker-0`, and its host; the coordinator first."""


@dataclass
class HostJob:
    """A running job."""

    keys: JobKeys
    hosts: list[Host]
    logs: Path
    roles: dict[str, HostProcess] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        """The run directory on the coordinator's host."""
        return self.hosts[0].root / RUN.relative_to("/")

    def said(self, name: str) -> str:
        """The log of a replica."""
        return (self.logs / f"{name}.log").read_text()

    def all_said(self) -> str:
        """The logs of all replicas."""
        return "\n".join(f"== {name}\n{self.said(name)}" for name in self.roles)

    def wait_for_training(self) -> None:
        """Wait for the first line of metrics; fail if a process ends before."""
        metrics = self.run_dir / METRICS

        def is_at_work() -> bool:
            assert all(role.poll() is None for role in self.roles.values()), self.all_said()
            return metrics.exists() and bool(metrics.read_text())

        poll_for(is_at_work, LIMIT_S, "steps trained")

    def end(self) -> dict[str, int]:
        """Wait for the end of all processes; return their exit codes."""
        poll_for(lambda: all(role.poll() is not None for role in self.roles.values()), LIMIT_S, "the end of all roles")
        return {name: role.wait() for name, role in self.roles.items()}

    def result(self) -> JobResult:
        """Wait until all processes have succeeded; return the result of the job."""
        codes = self.end()
        assert not any(codes.values()), f"{codes}\n{self.all_said()}"
        return result_of(self.run_dir)


@contextmanager
def started_on(
    placement: Placement, words: list[str], logs: Path, program: Sequence[str] = PROGRAM
) -> Iterator[HostJob]:
    """Start each replica on its host, all with the same keys; end the remaining ones.

    `program` is the argument of Python.
    """
    hosts = list(dict.fromkeys(placement.values()))
    job = HostJob(new_keys(), hosts, logs)
    logs.mkdir()
    for host in hosts:
        write_keys(host.root / KEYS.relative_to("/"), job.keys)
    try:
        for name, host in placement.items():
            job.roles[name] = _start(name, host, hosts[0], words, logs / f"{name}.log", program)
        yield job
    finally:
        for role in job.roles.values():
            role.kill()


def _start(name: str, host: Host, first: Host, words: list[str], log: Path, program: Sequence[str]) -> HostProcess:
    role, _, index = name.rpartition("-")
    command = [sys.executable, "-P", *program, "launch-role", role, "--index", index]
    command += ["--coordinator", f"tcp://{first.address}:{PORT}", "--key-file", str(KEYS)]
    if role == "coordinator":
        command += ["--run-dir", str(RUN), *words]
    with log.open("wb") as output:
        process = host.start(command, output)
    if role == "coordinator":
        address = host.root / RUN.relative_to("/") / COORDINATOR_ADDRESS
        poll_for(lambda: address.exists() or process.poll() is not None, LIMIT_S, "the coordinator to listen")
        assert process.poll() is None, log.read_text()
    return process


def listeners(host: Host) -> list[str]:
    """The addresses at which processes of the host listen."""
    code, said = host.run(["ss", "-ltnH"])
    assert code == 0, said
    return [f"tcp://{line.split()[3]}" for line in said.splitlines()]


def spread(hosts: list[Host], ranks: int = 1) -> Placement:
    """Four hosts: coordinator and an NN worker, loader and perhaps another, and two with a server and a worker each."""
    first, second, third, fourth, *_ = hosts
    return {
        "coordinator-0": first,
        "embedding-server-0": third,
        "embedding-server-1": fourth,
        "embedding-worker-0": third,
        "embedding-worker-1": fourth,
        "data-loader-0": second,
        "nn-worker-0": first,
        **({"nn-worker-1": second} if ranks == 2 else {}),
    }

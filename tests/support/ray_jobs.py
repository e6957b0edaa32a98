"""`persia train cluster=ray` on hosts of a lab, and its driver, which outlives it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil

from persia_cli.engines.key_files import KEY_FILE
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from tests.conftest import poll_for
from tests.support.host_job import NO_FILES
from tests.support.hosts import Host, HostProcess, lab
from tests.support.ray_nodes import ENVIRONMENT, RUN, commands_on, ray_on
from tests.support.small import WORDS

LIMIT_S = 240.0
ENDLESS = [*WORDS, *NO_FILES, "dataset.generator.train_rows=1000000000", "train.log_every_steps=5"]


class Command:
    """A command of persia on the host of its run directory; by default `persia train cluster=ray`."""

    def __init__(
        self,
        host: Host,
        address: str,
        words: list[str],
        output: Path,
        run_dir: Path = RUN,
        follows: str = "",
        key_file: Path | None = None,
    ) -> None:
        """`follows` is another command, such as `attach`, which gets only the run directory."""
        self.host, self._output = host, output
        self.run_dir = host.root / run_dir.relative_to("/")
        where = ["cluster=ray", f"cluster.address='{address}'", "cluster.start_timeout_s=60"]
        given = [follows, str(run_dir), *words] if follows else ["train", *where, *words, "--run-dir", str(run_dir)]
        own = {KEY_FILE: str(key_file)} if key_file else {}
        with output.open("wb") as file:
            command = [sys.executable, "-P", "-m", "persia_cli", *given]
            self.process: HostProcess = host.start(command, file, ENVIRONMENT | own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()

    @property
    def output(self) -> str:
        """Its output."""
        return self._output.read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_journal(self.run_dir / EVENTS) if event["event"] == kind]

    def last_step(self) -> int:
        return max((line["step"] for line in read_journal(self.run_dir / METRICS)), default=0)

    def wait(self, condition: Any, what: str) -> None:
        """Wait for a condition while the command runs."""
        poll_for(lambda: condition() or self.process.poll() is not None, LIMIT_S, f"{what}\n{self.output}")
        assert self.process.poll() is None, self.output

    def wait_for_more(self) -> None:
        """Wait until more steps are trained."""
        reached = self.last_step()
        self.wait(lambda: self.last_step() > reached + 5, "more steps")

    def end(self) -> int:
        poll_for(lambda: self.process.poll() is not None, LIMIT_S, f"the end of the command\n{self.output}")
        return self.process.wait()


@contextmanager
def cluster(count: int, folder: Path) -> Iterator[tuple[list[Host], str]]:
    """Yield so many hosts and the address of their Ray cluster."""
    with lab(count) as hosts, ray_on(hosts, folder) as address:
        yield hosts, address


def nothing_runs(hosts: list[Host]) -> bool:
    """Return True if no replica of any job is left on the hosts."""
    return not [process for host in hosts for process in commands_on(host, "launch-role")]


def driver_on(host: Host) -> psutil.Process:
    """The process that runs the only job of a host."""
    [driver] = commands_on(host, "drive")
    return driver

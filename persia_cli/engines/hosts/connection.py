"""The connection to one machine of a job, at the end that follows it: ssh, again and again if it is cut off."""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

from persia_cli.config.schema import HostsCluster, SshHost
from persia_cli.engines.hosts.mirror import Mirror
from persia_cli.engines.hosts.remote import last_words, ssh_command
from persia_cli.errors import RoleError, UserError

ALIVE_S = 5.0
"""Seconds between two lines to a machine that say only that this end is there."""
AGAIN_S = 3.0
"""Seconds until a connection that was cut off is tried again."""
CLOSE_S = 5.0
PORTION = 2**20
MOST_SAID = 2**12
"""Bytes of the end of what ssh has said of itself that are kept."""


class SshProcess:
    """One process of ssh, which exchanges lines of JSON with the session on the machine; nothing here waits."""

    def __init__(self, command: Sequence[str]) -> None:
        # A session of its own: Ctrl-C is for this process, which tells the machine.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._input, self._output, self._errors = map(_there, (
            self._process.stdin, self._process.stdout, self._process.stderr
        ))  # fmt: skip
        os.set_blocking(self._output.fileno(), False)
        os.set_blocking(self._errors.fileno(), False)
        self._rest = self._said = b""
        self._has_begun = False
        """True once the session on the machine has reported something."""

    @property
    def exit_code(self) -> int | None:
        """None while ssh runs."""
        return self._process.poll()

    @property
    def why(self) -> str:
        """What ssh, or the machine, has said of its end."""
        return last_words(self._said.decode(errors="replace"))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that have come.

        What the machine's shell says before the first one is passed over; later, whatever is no line ends ssh.
        """
        self._said = (self._said + (self._errors.read(PORTION) or b""))[-MOST_SAID:]
        while data := self._output.read(PORTION):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                try:
                    found = json.loads(line)
                except ValueError:
                    found = None
                if isinstance(found, dict):
                    self._has_begun = True
                    yield found
                elif self._has_begun:
                    self._said += b"\nit has sent what is no report: " + line[:80] + b"\n"
                    self._process.kill()
                    return

    def write(self, lines: Sequence[object]) -> bool:
        """Write lines; return False if ssh has ended."""
        try:
            self._input.write("".join(f"{json.dumps(line)}\n" for line in lines).encode())
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        """End the session; what runs on the machine goes on."""
        with suppress(BrokenPipeError):
            self._input.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._errors.close()


def _there(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


class Connection:
    """One machine; `poll` does all the work, and never waits."""

    def __init__(
        self,
        hosts: HostsCluster,
        host: SshHost,
        start: str,
        mirror: Mirror,
        say: Callable[[str], None],
        gives_up: bool = True,
    ) -> None:
        """`start` is the folder of the job's start on the machine; `say` is called when the connection is lost."""
        self.host, self.mirror, self.gives_up = host, mirror, gives_up
        self._hosts, self._start, self._say = hosts, start, say
        self.there: set[str] = set()
        """Replicas that were started on the machine."""
        self.ended: dict[str, int] = {}
        """Exit codes of the replicas that have ended."""
        self.cancelled: set[str] = set()
        """Replicas that were told to end before they were started, and never will be."""
        self.caught_up = False
        """True once all that had happened before the first connection is known."""
        self._name, self._number = secrets.token_hex(8), 0
        """By these the machine knows an order that it has obeyed already."""
        self._orders: list[dict[str, Any]] = []
        """Those that the machine has not said to have obeyed."""
        self._written = 0
        """How many of them have gone into the present connection, which may be dead."""
        self._lost_s: float | None = None
        self._told_s = 0.0
        self._ssh: SshProcess | None = None
        self._again_s = 0.0
        self.poll()

    @property
    def is_lost(self) -> bool:
        """True while ssh does not reach the machine."""
        return self._lost_s is not None

    def signal(self, name: str, replicas: Sequence[str]) -> None:
        """Send a signal to replicas, now or when the machine is reached again; each gets it once."""
        self._number += 1
        self._orders.append({"from": self._name, "number": self._number, "signal": name, "to": list(replicas)})
        self.poll()

    def poll(self) -> None:
        """Take what has come.

        If it `gives_up`, raises RoleError once ssh cannot reach the machine for `cluster.lost_s`.
        """
        now = time.monotonic()
        if self._ssh is None:
            if now >= self._again_s:
                command = ssh_command(self._hosts, self.host, ["on-host", "--", self._start])
                self._ssh, self._told_s, self._written = SshProcess(command), now, 0
                self._ssh.write([{"replicas": self.mirror.replicas, "known": self.mirror.known}])
            return
        code = self._ssh.exit_code
        for line in self._ssh.lines():
            self._heed(line)
        if code is not None:
            why = self._ssh.why
            self.close()
            self._lose(code, why, now)
            return
        orders = self._orders[self._written :]
        if (orders or now - self._told_s > ALIVE_S) and self._ssh.write(orders or [{}]):
            self._written, self._told_s = len(self._orders), now

    def close(self) -> None:
        """End the connection; what runs on the machine goes on."""
        if self._ssh is not None:
            self._ssh.close()
            self._ssh = None

    def _heed(self, line: dict[str, Any]) -> None:
        if self._lost_s is not None:
            self._say(f"{self.host.ssh} is reached again")
            self._lost_s = None
        if "file" in line:
            self.mirror.take(line)
        elif "replica" in line:
            self.there.add(line["replica"])
        elif "ended" in line:
            self.ended[line["ended"]] = line["code"]
        elif "cancelled" in line:
            self.cancelled.add(line["cancelled"])
        elif "obeyed" in line:
            left = [order for order in self._orders if order["number"] > line["obeyed"]]
            self._orders, self._written = left, max(0, self._written - len(self._orders) + len(left))
        elif "caught_up" in line:
            self.caught_up = True

    def _lose(self, code: int, why: str, now: float) -> None:
        if code == UserError.exit_code and self.gives_up:
            raise UserError(f"{self.host.ssh}: {why}")
        if self._lost_s is None:
            self._lost_s = now
            self._say(f"{self.host.ssh} is not reached by ssh: {why}; the job goes on, and ssh is tried again")
        if now - self._lost_s > self._hosts.lost_s and self.gives_up:
            raise RoleError(
                f"{self.host.ssh} has not been reached by ssh for {self._hosts.lost_s:g} s: {why}; the job may go on"
            )
        self._again_s = now + AGAIN_S

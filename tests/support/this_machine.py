"""This machine behind a stand-in for ssh, as a machine of a job with `cluster=hosts`."""

import json
import shlex
import stat
import sys
from pathlib import Path
from typing import ClassVar

from persia_cli.engines.hosts.connection import Connection
from persia_cli.engines.hosts.mirror import Mirror

from persia_cli.config.schema import HostsCluster, SshHost

NAME = "coordinator-0"
HOST = SshHost(ssh="here")
SCRIPT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
    case "$1" in -o) shift 2 ;; *) shift ;; esac
done
here=$(dirname "$0")
if [ -e "$here/cut" ] || [ -e "$here/cut-$1" ]; then
    echo "ssh: connect to host $1 port 22: No route to host" >&2
    exit 255
fi
exec /bin/sh -c "$2"
"""
"""It reaches no machine while there is a file `cut` next to it, and not NAME while there is `cut-NAME`."""
LISTENER = """
import os, signal, sys
def note(number, frame):
    with open(sys.argv[1], "a") as came:
        came.write(signal.Signals(number).name + " ")
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
print("ready", flush=True)
input()
"""
"""A stand-in for a supervisor: it writes received signals to a file, until there is a line of input."""


class ImpatientCluster(HostsCluster):
    """A cluster whose command soon gives up a machine."""

    lost_s: ClassVar[float] = 1.0


class Machine:
    """This machine behind a stand-in for ssh, and the notifications about it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        self.start, self.run, self.copy = folder / "jobs/a/start-1", folder / "jobs/a/run", folder / "copy"
        for made in (self.start, self.run, self.copy):
            made.mkdir(parents=True)
        (folder / "ssh").write_text(SCRIPT)
        (folder / "ssh").chmod(stat.S_IRWXU)
        persia = f"{shlex.quote(sys.executable)} -P -m persia_cli"
        self.hosts = ImpatientCluster(kind="hosts", ssh=str(folder / "ssh"), persia=persia, folder=str(folder / "jobs"))

    def connect(self) -> Connection:
        return Connection(self.hosts, HOST, "a/start-1", Mirror(self.copy, [NAME]), self.said.append)

    @property
    def copied(self) -> list[int]:
        """The lines of metrics that have arrived."""
        try:
            return [json.loads(line) for line in (self.copy / "metrics.jsonl").read_text().splitlines()]
        except FileNotFoundError:
            return []

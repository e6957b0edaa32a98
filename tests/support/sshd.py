"""Servers of real ssh on the hosts of a lab."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import poll_for
from tests.support.hosts import Host

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""
RIGHTS = Path("/run/sshd")
"""Folder that sshd needs for its separation of rights; hosts have it from this machine."""
LIMIT_S = 20.0
needs_sshd = pytest.mark.skipif(not SSHD, reason="real ssh needs sshd (Debian's package openssh-server)")


@contextmanager
def served_by_ssh(hosts: Sequence[Host], user: Host, folder: Path) -> Iterator[str]:
    """Yield the ssh command by which the machine `user` reaches the hosts, each with its own server."""
    made = not RIGHTS.exists()
    RIGHTS.mkdir(mode=0o755, exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    servers = []
    try:
        for host in hosts:
            for name in ("host", "user.pub"):
                shutil.copy(folder / name, host.root / "tmp" / name)
            options = [
                f"ListenAddress={host.address}",
                "AuthorizedKeysFile=/tmp/user.pub",
                "StrictModes=no",
                "UsePAM=no",
            ]
            options += ["PidFile=none", "PermitRootLogin=prohibit-password"]
            words = [SSHD, "-D", "-e", "-f", "/dev/null", "-h", "/tmp/host", *(f"-o{option}" for option in options)]
            servers.append(host.start(words))
        ask = ["ss", "-ltnH", "sport", "=", ":22"]
        poll_for(lambda: all(host.run(ask)[1].strip() for host in hosts), LIMIT_S, "sshd to listen")
        client = ["ssh", "-F", "/dev/null", "-i", str(folder / "user"), "-o", "StrictHostKeyChecking=no"]
        client += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-l", "root"]
        yield shlex.join(["nsenter", f"--target={user.pid}", "--net", *client])
    finally:
        for server in servers:
            server.kill()
        if made:
            RIGHTS.rmdir()

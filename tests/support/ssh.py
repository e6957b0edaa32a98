"""The ssh command of tests: a stand-in on this machine, which enters the hosts of a lab, and real ssh between them.

Like sshd the stand-in starts the command by a shell in the user's home, passes on at which address it was reached, and
leaves processes with a separate session running when the connection ends.
"""

import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import poll_for
from tests.support.hosts import CACHE, ENTERED, Host

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""
RIGHTS = Path("/run/sshd")
"""Folder that sshd needs for its separation of rights; hosts have it from this machine."""
LIMIT_S = 20.0
needs_sshd = pytest.mark.skipif(not SSHD, reason="real ssh needs sshd (Debian's package openssh-server)")
PERSIA = f"{shlex.quote(sys.executable)} -P -m persia_cli"
SCRIPT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do
    case "$1" in -o) shift 2 ;; *) shift ;; esac
done
name=${{1#*@}}
case "$name" in
{hosts}
*) echo "ssh: Could not resolve hostname $name: Name or service not known" >&2; exit 255 ;;
esac
exec nsenter --target=$pid {entered} env -i PATH="$PATH" HOME=/tmp TMPDIR=/tmp \\
    NUMBA_CACHE_DIR={cache} SSH_CONNECTION="{client} 40000 $address 22" /bin/sh -c "cd && $2"
"""
CASE = "{name}) pid={pid}; address={address} ;;"
CONFIG = """\
IdentityFile {folder}/user
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
User root
ServerAliveInterval 2
"""


def stand_in(folder: Path, hosts: Sequence[Host]) -> Path:
    """Write the command to a folder, and return its path; it resolves the names of these hosts."""
    cases = [CASE.format(name=host.name, pid=host.pid, address=host.address) for host in hosts]
    script = folder / "ssh"
    script.write_text(
        SCRIPT.format(hosts="\n".join(cases), cache=CACHE, client="10.213.77.254", entered=" ".join(ENTERED))
    )
    script.chmod(stat.S_IRWXU)
    return script


@contextmanager
def ssh_between(folder: Path, hosts: Sequence[Host]) -> Iterator[Path]:
    """Yield the path of an ssh command on this machine and on the hosts, which reaches the hosts by their names."""
    made = not RIGHTS.exists()
    RIGHTS.mkdir(mode=0o755, exist_ok=True)
    for name in ("host", "user"):
        if not (folder / name).exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    names = "".join(f"Host {host.name}\n    HostName {host.address}\n" for host in hosts)
    servers = []
    try:
        for host in hosts:
            there = host.root / folder.relative_to("/")
            there.mkdir(parents=True, exist_ok=True)
            for name in ("host", "user", "user.pub"):
                shutil.copy(folder / name, there / name)
            (there / "config").write_text(f"{names}Host *\n{CONFIG.format(folder=folder)}")
            (there / "ssh").write_text(f'#!/bin/sh\nexec ssh -F {folder}/config "$@"\n')
            (there / "ssh").chmod(stat.S_IRWXU)
            environment = f"HOME=/tmp TMPDIR=/tmp NUMBA_CACHE_DIR={CACHE}"
            options = [f"ListenAddress={host.address}", f"AuthorizedKeysFile={folder}/user.pub", "StrictModes=no"]
            options += ["UsePAM=no", "PidFile=none", "PermitRootLogin=prohibit-password", f"SetEnv={environment}"]
            options += ["MaxStartups=100", "ClientAliveInterval=2"]
            words = [SSHD, "-D", "-e", "-f", "/dev/null", "-h", f"{folder}/host", *(f"-o{each}" for each in options)]
            servers.append(host.start(words))
        ask = ["ss", "-ltnH", "sport", "=", ":22"]
        poll_for(lambda: all(host.run(ask)[1].strip() for host in hosts), LIMIT_S, "sshd to listen")
        yield stand_in(folder, hosts)
    finally:
        for server in servers:
            server.kill()
        if made:
            RIGHTS.rmdir()


def on_hosts(ssh: Path, hosts: Sequence[Host]) -> list[str]:
    """Return the arguments of a job on these hosts."""
    names = ",".join(host.name for host in hosts)
    return [
        "cluster=hosts",
        f"cluster.hosts=[{names}]",
        f"cluster.ssh={ssh}",
        f"cluster.persia='{PERSIA}'",
        "cluster.folder=/tmp/persia-jobs",
    ]

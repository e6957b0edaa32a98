"""A stand-in for the ssh command that enters the hosts of a lab, so that tests need no sshd.

Like sshd it starts the command by a shell in the user's home, sets its own address in the environment, and leaves
processes with their own session running when the connection ends.
"""

import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.hosts import CACHE, ENTERED, Host

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
    $clock NUMBA_CACHE_DIR={cache} SSH_CONNECTION="{client} 40000 $address 22" /bin/sh -c "cd && $2"
"""
CASE = "{name}) pid={pid}; address={address}; clock='{clock}' ;;"
CLOCKS = Path(__file__).with_name("wrong_clock")


def stand_in(folder: Path, hosts: Sequence[Host], ahead_s: Mapping[str, float] | None = None) -> Path:
    """Write the command to a folder, and return its path; it resolves the names of these hosts.

    `ahead_s` is, for some of them, how far their clocks are ahead of the time.
    """
    clocks = {name: f"PYTHONPATH={CLOCKS} PERSIA_TEST_AHEAD_S={ahead}" for name, ahead in (ahead_s or {}).items()}
    cases = [
        CASE.format(name=host.name, pid=host.pid, address=host.address, clock=clocks.get(host.name, ""))
        for host in hosts
    ]
    script = folder / "ssh"
    script.write_text(
        SCRIPT.format(hosts="\n".join(cases), cache=CACHE, client="10.213.77.254", entered=" ".join(ENTERED))
    )
    script.chmod(stat.S_IRWXU)
    return script


def on_hosts(ssh: Path, hosts: Sequence[Host]) -> list[str]:
    """Return the arguments of a job on these hosts."""
    names = ",".join(host.name for host in hosts)
    return [
        "cluster=hosts",
        f"cluster.hosts=[{names}]",
        f"cluster.ssh={ssh}",
        f"cluster.persia='{PERSIA}'",
    ]

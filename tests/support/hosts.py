"""A lab of several hosts on this machine: processes of different hosts share neither memory, sockets, ids nor files.

Each host is a set of Linux namespaces with its own network interface, host name, process ids, /dev/shm and /tmp. All
other files are those of this machine, and read-only. A bridge in its own namespace joins the interfaces, so the lab
has no connection to another network. The first process of a host waits for the end of its input, which this process
has open: if this process ends, the kernel ends everything in the host and removes its interface. So no clean-up is
needed.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "10.213.77"
TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv", "mount")
NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc")
ENTERED = ("--mount", "--uts", "--ipc", "--net", "--pid", "--time")
CACHE = Path("/tmp/cache")
"""Each host's own folder of compiled kernels."""
OWN_FOLDERS = {"TMPDIR": "/tmp", "HOME": "/tmp", "NUMBA_CACHE_DIR": str(CACHE)}
READY = b"ready\n"
START_S = 20.0
LIMIT_S = 60.0
BURST = "256kb"
QUEUE = "50ms"
"""The token bucket that limits an interface: the size of a burst, and the maximum delay of a packet."""

SWITCH = "ip link add switch type bridge && ip link set switch up && echo ready && read -r end"
HOST = """
set -e
ip link set lo up
hostname {name}
mount -t tmpfs tmpfs /dev/shm
cp -r {compiled} /dev/shm/kernels 2> /dev/null || mkdir /dev/shm/kernels
{keep}
mount -t tmpfs tmpfs /tmp
mount -o remount,bind,ro /
{show}
mkdir {cache}
mv /dev/shm/kernels {cache}/{kernels}
exec {first}
"""
FIRST = """\
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps processes whose parents have ended
print("ready", flush=True)
sys.stdin.read()
"""
"""The first process once the host is ready: a shell would be interrupted by the end of each orphan."""


@cache
def why_not() -> str:
    """Return why no hosts can be made here; empty if they can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts need {', '.join(missing)} (Debian's packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    made = subprocess.run(
        shlex.split("unshare --net --mount --uts --ipc --pid --fork ip link add x type bridge"),
        capture_output=True,
        text=True,
    )
    return "" if made.returncode == 0 else f"no namespaces can be made here: {made.stderr.strip()}"


needs_hosts = pytest.mark.skipif(bool(why_not()), reason=why_not() or "hosts can be made")
"""Mark of tests that need a lab."""


class HostProcess:
    """A process of a host, which ends with this one; `outer` is its parent, which ends with the same code."""

    def __init__(self, outer: "subprocess.Popen[bytes]") -> None:
        self.outer = outer

    @property
    def inner(self) -> psutil.Process:
        """The process itself, under the id that it has outside of its host."""
        [child] = psutil.Process(self.outer.pid).children()
        return child

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs; minus a signal's number if that ended it."""
        return self.outer.poll()

    def wait(self, within_s: float = LIMIT_S) -> int:
        """Wait for the end and return the exit code."""
        return self.outer.wait(within_s)

    def send_signal(self, number: int) -> None:
        """Send the process a signal."""
        self.inner.send_signal(number)

    def kill(self) -> None:
        """Kill the process if it runs, and wait for its end."""
        self.outer.kill()  # the process is killed with its parent
        self.outer.wait()


class Host:
    """One host of a lab."""

    def __init__(self, number: int, first: "subprocess.Popen[bytes]", switch: int) -> None:
        self.number, self.name = number, f"host{number}"
        self.address = f"{NETWORK}.{number}"
        self._first, self._switch = first, switch
        [inner] = psutil.Process(first.pid).children()
        self.pid = inner.pid
        """The first process of the host, under the id that it has outside of it."""

    @property
    def root(self) -> Path:
        """The files of the host, seen from outside."""
        return Path(f"/proc/{self.pid}/root")

    def start(
        self,
        command: Sequence[str],
        output: int | IO[bytes] = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> HostProcess:
        """Start a command on the host; `output` gets its output."""
        enter = ["nsenter", f"--target={self.pid}", *ENTERED, "--wd=/tmp"]
        process = subprocess.Popen(
            [*enter, "setpriv", "--pdeathsig=KILL", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | OWN_FOLDERS | dict(environment or {}),
        )
        return HostProcess(process)

    def run(self, command: Sequence[str], within_s: float = LIMIT_S) -> tuple[int, str]:
        """Run a command on the host to its end; return its exit code and output."""
        process = self.start(command, subprocess.PIPE)
        try:
            said, _ = process.outer.communicate(timeout=within_s)
        finally:
            process.kill()
        return process.outer.returncode, said.decode()

    def python(self, program: str, within_s: float = LIMIT_S) -> tuple[int, str]:
        """Run a Python program on the host to its end; return its exit code and output."""
        return self.run([sys.executable, "-c", program], within_s)

    def kill(self) -> None:
        """End the host like a loss of power: all its processes, its memory and its files are gone."""
        self._first.kill()
        self._first.communicate()

    def down(self) -> None:
        """Take the network interface down; connections stay open without traffic."""
        self._ip("link", "set", "eth0", "down")

    def up(self) -> None:
        """Take the interface up again."""
        self._ip("link", "set", "eth0", "up")

    def limit(self, rate: str) -> None:
        """Limit the interface to this rate in each direction, such as `100mbit`."""
        shape = ["root", "tbf", "rate", rate, "burst", BURST, "latency", QUEUE]
        _net(self.pid, "tc", "qdisc", "replace", "dev", "eth0", *shape)
        _net(self._switch, "tc", "qdisc", "replace", "dev", f"port{self.number}", *shape)

    def _ip(self, *words: str) -> None:
        _net(self.pid, "ip", *words)

    def plug_in(self) -> None:
        """Connect the host's interface to the others."""
        port = f"port{self.number}"
        peer = ["peer", "name", "eth0", "netns", str(self.pid)]
        _net(self._switch, "ip", "link", "add", port, "type", "veth", *peer)
        _net(self._switch, "ip", "link", "set", port, "master", "switch", "up")
        self._ip("address", "add", f"{self.address}/24", "dev", "eth0")
        self.up()


def processes_on(host: Host) -> list[psutil.Process]:
    """All processes of a host, also those that it serves by ssh."""

    def namespace(pid: int) -> Path | None:
        try:
            return Path(f"/proc/{pid}/ns/pid").readlink()
        except OSError:
            return None

    own = namespace(host.pid)
    return [each for each in psutil.process_iter() if own and namespace(each.pid) == own]


def argv_of(process: psutil.Process) -> list[str]:
    """The command line of a process; none if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextmanager
def lab(count: int, shown: Sequence[Path] = ()) -> Iterator[list[Host]]:
    """Yield so many hosts, which see only the program and `shown` of this machine's /tmp."""
    with ExitStack() as stack:
        switch = stack.enter_context(_first_process(["--net"], SWITCH))
        [switch_pid] = [child.pid for child in psutil.Process(switch.pid).children()]
        hosts = []
        for number in range(1, count + 1):
            script = _host_script(f"host{number}", shown)
            first = stack.enter_context(_first_process(NAMESPACES, script))
            host = Host(number, first, switch_pid)
            host.plug_in()
            hosts.append(host)
        yield hosts


@contextmanager
def _first_process(namespaces: Sequence[str], script: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a script as the first process of new namespaces; yield it when it is ready, and end it after the block."""
    process = subprocess.Popen(
        ["unshare", *namespaces, "--fork", "--kill-child", "/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == READY, "a host does not start; see above"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        with contextlib.suppress(ValueError):  # it was killed before, and its pipes are closed
            process.communicate(timeout=START_S)


def _host_script(name: str, shown: Sequence[Path]) -> str:
    """Return the script of a host's first process."""
    from persia_cli.kernels.toolchain.cache import cache_folder

    hidden = {path.resolve() for path in (ROOT, Path(sys.prefix), *shown)}
    hidden = {path for path in hidden if path.is_relative_to("/tmp") and not hidden & set(path.parents)}
    keep, show = [], []
    for number, path in enumerate(sorted(hidden)):
        place, quoted = f"/dev/shm/kept{number}", shlex.quote(str(path))
        keep += [f"mkdir {place}", f"mount -n --bind {quoted} {place}"]
        show += [f"mkdir -p {quoted}", f"mount -n --move {place} {quoted}", f"mount -n -o remount,bind,ro {quoted}"]
        show += [f"rmdir {place}"]
    compiled = cache_folder()
    return HOST.format(
        name=name,
        keep="\n".join(keep),
        show="\n".join(show),
        compiled=shlex.quote(str(compiled)),
        cache=CACHE,
        first=shlex.join([sys.executable, "-I", "-S", "-c", FIRST]),
        kernels=compiled.name,
    )


def _net(pid: int, *command: str) -> None:
    """Run a command in the network of a process, with the files of this machine."""
    done = subprocess.run(["nsenter", f"--target={pid}", "--net", *command], capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"

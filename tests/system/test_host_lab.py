"""The lab in which jobs of several hosts are tested: its hosts share nothing but what a network carries."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import poll_for
from tests.support.hosts import Host, HostProcess, lab, needs_hosts

pytestmark = [pytest.mark.processes, needs_hosts]

PORT = 7000
LISTEN = f"""
import socket, sys
with socket.create_server((sys.argv[1], {PORT})) as server:
    print("listens", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            while connection.recv(1 << 16):
                pass
            connection.sendall(b"all")
"""
SEND = f"""
import socket, sys, time
with socket.create_connection((sys.argv[1], {PORT}), timeout=1) as connection:
    begin = time.monotonic()
    for _ in range(int(sys.argv[2])):
        connection.sendall(bytes(1 << 16))
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(3) == b"all"
    print(time.monotonic() - begin)
"""
MARKS = """
import pathlib, socket, time
pathlib.Path("/dev/shm/mark").write_text("")
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/mark")
server.listen()
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0mark")
abstract.listen()
print("marks", flush=True)
time.sleep(60)
"""
LOOK = """
import os, pathlib, socket
print(os.path.exists("/dev/shm/mark"), os.path.exists("/tmp/mark"))
for name in ("\\0mark", "/tmp/mark"):
    try:
        socket.socket(socket.AF_UNIX).connect(name)
        print("connected to", name)
    except OSError:
        pass
print(socket.gethostname(), len([each for each in os.listdir("/proc") if each.isdigit()]))
"""


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with lab(2) as hosts:
        yield hosts


def started(host: Host, program: str, *words: str) -> HostProcess:
    """Start a program that prints a line when it is ready."""
    process = host.start([sys.executable, "-c", program, *words], subprocess.PIPE)
    assert process.outer.stdout is not None
    line = process.outer.stdout.readline()
    assert line.split(), "the program ended"
    return process


def end(process: HostProcess) -> None:
    process.kill()
    assert process.outer.stdout is not None
    process.outer.stdout.close()


def sent(host: Host, to: Host, blocks: int = 1) -> tuple[int, str]:
    return host.run([sys.executable, "-c", SEND, to.address, str(blocks)])


def test_hosts_share_neither_memory_nor_sockets_nor_ids(two: list[Host]) -> None:
    first, second = two
    marking = started(first, MARKS)
    try:
        assert (first.root / "tmp" / "mark").is_socket()
        code, said = second.python(LOOK)
        seen = first.python(LOOK)[1].splitlines()
    finally:
        end(marking)
    assert code == 0, said
    # Its first process, the shell that becomes this program's parent, and the program.
    assert said.splitlines() == ["False False", "host2 2"]
    assert seen[0] == "True True"
    assert [line.split()[0] for line in seen[1:]] == ["connected", "connected", "host1"]
    assert socket.gethostname() not in ("host1", "host2")


def test_of_other_files_hosts_see_those_of_this_machine_and_change_none(two: list[Host], tmp_path: Path) -> None:
    (tmp_path / "data").write_text("seen")
    code, said = two[0].python("import persia_cli; print(open('/tmp/x', 'w').write('x')); open('/etc/x', 'w')")
    assert code == 1
    assert said.startswith("1\n")
    assert "Read-only file system: '/etc/x'" in said
    assert two[0].python(f"print(open({str(tmp_path / 'data')!r}).read())")[0] == 1
    with lab(1, shown=[tmp_path]) as [host]:
        assert host.python(f"print(open({str(tmp_path / 'data')!r}).read())") == (0, "seen\n")
        code, said = host.python(f"open({str(tmp_path / 'other')!r}, 'w')")
        assert "Read-only file system" in said
    assert not (tmp_path / "other").exists()


def test_hosts_reach_each_other_unless_an_interface_is_down(two: list[Host]) -> None:
    first, second = two
    server = started(first, LISTEN, first.address)
    try:
        assert sent(second, first)[0] == 0
        first.down()
        code, said = sent(second, first)
        assert code == 1
        assert "TimeoutError" in said or "OSError" in said
        first.up()
        assert sent(second, first)[0] == 0
        assert "0.0.0.0" not in second.run(["ip", "route"])[1]
        assert "default" not in second.run(["ip", "route"])[1]
    finally:
        end(server)


def test_an_interface_passes_what_it_is_limited_to(two: list[Host]) -> None:
    first, second = two
    server = started(first, LISTEN, first.address)
    try:
        first.limit("80mbit")
        code, said = sent(second, first, blocks=64)  # 4 MiB, of which the bucket passes a little at once
    finally:
        end(server)
    assert code == 0, said
    assert 0.36 < float(said) < 1.5  # 0.42 s at 10 MB/s


def test_a_host_that_is_killed_takes_its_processes_along() -> None:
    with lab(2) as [first, second]:
        sleeping = first.start(["sleep", "600"])
        poll_for(lambda: psutil.Process(sleeping.outer.pid).children(), 5.0, "the command to begin")
        stopped = second.start(["sleep", "600"])
        poll_for(lambda: psutil.Process(stopped.outer.pid).children(), 5.0, "the command to begin")
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait() == -signal.SIGTERM
        first.kill()
        assert sleeping.wait() == -signal.SIGKILL
        assert second.python("print(1)") == (0, "1\n")


ENDED = """
import os, signal, sys
from tests.support.hosts import lab
with lab(1) as [host]:
    host.start(["sleep", "987654"])
    while "987654" not in host.run(["ps", "-eo", "args"])[1]:
        pass
    print("runs", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_when_the_test_is_killed() -> None:
    died = subprocess.run([sys.executable, "-c", ENDED], stdout=subprocess.PIPE, timeout=60)
    assert died.stdout == b"runs\n"

    def left() -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["cmdline"]) if "987654" in (p.info["cmdline"] or [])]

    deadline = time.monotonic() + 10
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left()

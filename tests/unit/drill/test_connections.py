"""Connections between two other processes are cut, Unix sockets and TCP alike, and no others."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from persia_cli.drill.connections import cut
from persia_cli.launch.running import RunningProcess, process_of

LISTENS = """
import socket, sys
kind, address = sys.argv[1:3]
server = socket.socket(socket.AF_UNIX if kind == "ipc" else socket.AF_INET)
server.bind(address if kind == "ipc" else ("127.0.0.1", 0))
server.listen()
print(address if kind == "ipc" else server.getsockname()[1], flush=True)
connections = [server.accept()[0] for _ in range(2)]
print("both", flush=True)
for connection in connections:
    connection.settimeout(10)
first, second = (connection.recv(1) for connection in connections)
print(first, second, flush=True)
"""
CONNECTS = """
import socket, sys
kind, address = sys.argv[1:3]
client = socket.socket(socket.AF_UNIX if kind == "ipc" else socket.AF_INET)
client.connect(address if kind == "ipc" else ("127.0.0.1", int(address)))
print("connected", flush=True)
client.settimeout(10)
print(client.recv(1), flush=True)
"""


def started(code: str, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)


def says(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def running(process: "subprocess.Popen[str]") -> RunningProcess:
    found = process_of(process.pid)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
@pytest.mark.parametrize("from_client", [True, False])
def test_both_ends_see_the_end_of_their_connection_and_nobody_else(tmp_path: Path, kind: str, from_client: bool):
    server = started(LISTENS, kind, str(tmp_path / "s"))
    address = says(server)
    client = started(CONNECTS, kind, address)
    assert says(client) == "connected"
    bystander = socket.socket(socket.AF_UNIX if kind == "ipc" else socket.AF_INET)
    bystander.connect(address if kind == "ipc" else ("127.0.0.1", int(address)))
    try:
        assert says(server) == "both"
        pair = (running(client), running(server))
        assert cut(*(pair if from_client else pair[::-1])) == 1
        assert says(client) == "b''"
        bystander.send(b"x")
        assert says(server) == "b'' b'x'"
    finally:
        bystander.close()
        for process in (client, server):
            assert process.wait(20) == 0
            assert process.stdout is not None
            process.stdout.close()


def test_processes_without_a_connection_are_left_alone():
    one, other = (started("import sys; print(1, flush=True); sys.stdin.read()") for _ in range(2))
    for process in (one, other):
        says(process)
    try:
        assert cut(running(one), running(other)) == 0
    finally:
        for process in (one, other):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    assert not running_again(one)


def running_again(process: "subprocess.Popen[str]") -> bool:
    found = process_of(process.pid)
    return found is not None and found.lives

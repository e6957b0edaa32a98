"""The connection to a machine, which is this one: cut off it is made again, and nothing is lost or comes twice."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persia_cli.engines.background import note_process
from persia_cli.engines.hosts import connection as connections
from persia_cli.engines.hosts.connection import Connection
from persia_cli.engines.hosts.machines import ask, reached
from persia_cli.engines.hosts.session import OBEYED
from persia_cli.errors import RoleError, UserError
from tests.conftest import poll_for
from tests.support.this_machine import HOST, LISTENER, NAME, Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(connections, "AGAIN_S", 0.1)
    return Machine(tmp_path)


@pytest.fixture
def connection(machine: Machine) -> Iterator[Connection]:
    made = machine.connect()
    yield made
    made.close()


def wait(connection: Connection, condition: object, what: str) -> None:
    def polled() -> bool:
        connection.poll()
        return bool(condition())  # type: ignore[operator]

    poll_for(polled, 60.0, what)


def test_what_was_written_while_the_connection_was_cut_comes_once(machine: Machine, connection: Connection) -> None:
    with (machine.run / "metrics.jsonl").open("a") as metrics:
        metrics.write("1\n2\n")
        metrics.flush()
        wait(connection, lambda: machine.copied == [1, 2] and connection.caught_up, "two lines")
        assert connection._ssh is not None
        connection._ssh._process.kill()
        metrics.write("3\n")
        metrics.flush()
        wait(connection, lambda: machine.copied == [1, 2, 3], "the third line")
    lost, found = machine.said
    assert lost.startswith("here is not reached by ssh: ")
    assert found == "here is reached again"


@pytest.fixture
def signals(machine: Machine) -> Iterator[Callable[[], list[str]]]:
    """Returns the signals that have come to a process that stands for a supervisor."""
    came = machine.folder / "signals"
    command = [sys.executable, "-c", LISTENER, str(came)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        note_process(machine.start, NAME, process.pid)
        yield lambda: came.read_text().split() if came.exists() else []
        process.communicate(b"\n")


def processes_of(connection: Connection) -> int:
    """The group of a connection's ssh, and of all that it runs."""
    assert connection._ssh is not None
    return connection._ssh._process.pid


def test_a_signal_that_goes_into_a_dead_connection_comes_once_there_is_another(
    machine: Machine, connection: Connection, signals: Callable[[], list[str]]
) -> None:
    wait(connection, lambda: connection.caught_up, "the first connection")
    dead = processes_of(connection)
    os.killpg(dead, signal.SIGSTOP)
    connection.signal("SIGUSR2", [NAME])
    connection.signal("SIGUSR1", [NAME])
    os.killpg(dead, signal.SIGKILL)
    wait(connection, lambda: not connection._orders, "the machine's word that it has obeyed")
    wait(connection, lambda: sorted(signals()) == ["SIGUSR1", "SIGUSR2"], "both signals")
    assert machine.said[-1] == "here is reached again"


def test_a_signal_comes_once_though_the_connection_dies_before_that_is_known(
    machine: Machine, connection: Connection, signals: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(connection, lambda: connection.caught_up, "the first connection")
    heed, first = connection._heed, processes_of(connection)
    with monkeypatch.context() as deaf:
        deaf.setattr(connection, "_heed", lambda line: None if "obeyed" in line else heed(line))
        connection.signal("SIGUSR1", [NAME])
        wait(connection, signals, "the signal")
        wait(connection, (machine.start / OBEYED).exists, "the machine's note that it has obeyed")
        os.killpg(first, signal.SIGKILL)
        wait(connection, lambda: connection._ssh is None, "the end of the connection")
    connection.signal("SIGUSR2", [NAME])
    wait(connection, lambda: not connection._orders, "the machine's word that it has obeyed")
    wait(connection, lambda: "SIGUSR2" in signals(), "the second signal")
    assert signals() == ["SIGUSR1", "SIGUSR2"]


def test_a_machine_that_stays_away_ends_the_command_with_its_name(machine: Machine, connection: Connection) -> None:
    wait(connection, lambda: connection.caught_up, "the first connection")
    (machine.folder / "cut").touch()
    assert connection._ssh is not None
    connection._ssh._process.kill()
    with pytest.raises(RoleError, match=r"^here has not been reached by ssh for 1 s: .*No route to host; the job may"):
        wait(connection, lambda: False, "nothing")


def test_the_first_call_says_what_the_machine_is_or_why_it_is_not_reached(machine: Machine) -> None:
    assert ask(machine.hosts, [HOST])["here"].memory > 0
    (machine.folder / "cut").touch()
    with pytest.raises(UserError, match=r"^here is not reached by ssh: ssh: connect to host here port 22: No route to"):
        ask(machine.hosts, [HOST])


def test_bytes_of_another_encoding_are_shown_as_far_as_they_can_be(machine: Machine) -> None:
    (machine.folder / "ssh").write_text("#!/bin/sh\nprintf 'Befehl nicht gefunden: \\374\\n' >&2; exit 255\n")
    with pytest.raises(UserError, match=r"^here is not reached by ssh: Befehl nicht gefunden: \ufffd; "):
        ask(machine.hosts, [HOST])
    assert reached(machine.hosts, [HOST]) == []

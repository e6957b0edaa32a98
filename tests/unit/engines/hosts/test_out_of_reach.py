"""Jobs one of whose machines ssh does not reach: they are shown and stopped by way of the coordinator's."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from persia_cli.commands import hosts_job
from persia_cli.commands.follow import logs
from persia_cli.config.compose import compose_run
from persia_cli.config.record import write_run
from persia_cli.config.words import quoted
from persia_cli.engines.background import END, LOG, note_process
from persia_cli.engines.hosts import connection as connections
from persia_cli.engines.hosts import job as jobs
from persia_cli.engines.hosts.begin import STATE, found
from persia_cli.errors import PreemptedError, RoleError, UserError
from persia_cli.observe.history import CONFIG
from tests.support.this_machine import NAME, Machine

SAVES = """
import signal, sys
def save(number, frame):
    with open(sys.argv[1], "w") as end:
        end.write("75")
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
print("ready", flush=True)
signal.pause()
"""
"""A process that stands for the coordinator's supervisor, whose job can be saved."""
OTHERS = ["embedding-server-0", "embedding-worker-0"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run directory of a job on `here`, with the coordinator, and on `away`, which is cut off."""
    monkeypatch.setattr(connections, "AGAIN_S", 0.1)
    machine = Machine(tmp_path)
    (tmp_path / "cut-away").touch()
    words = [f"cluster.{key}={quoted(getattr(machine.hosts, key))}" for key in ("ssh", "persia", "folder")]
    words += ["cluster=hosts", "cluster.hosts=[here,away]", "cluster.lost_s=0.2", "cluster.stop_timeout_s=1"]
    (machine.start / f"{NAME}{LOG}").write_text("the coordinator is at work\n")
    run = machine.copy
    write_run(compose_run(words), run / CONFIG)
    (run / STATE).write_text('{"job": "a", "starts": 1}\n')
    (run / "roles").mkdir()
    (run / "roles" / "embedding-server-0.log").write_text("the server was at work\n")
    return run


@pytest.fixture
def coordinator(run: Path, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in the coordinator's place."""
    start = tmp_path / "jobs/a/start-1"
    command = [sys.executable, "-c", SAVES, str(start / f"{NAME}{END}")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        note_process(start, NAME, process.pid)
        yield process
        process.kill()


def test_a_job_is_stopped_and_saved_though_a_machine_is_out_of_reach(
    run: Path, coordinator: "subprocess.Popen[bytes]", capfd: pytest.CaptureFixture[str]
) -> None:
    with found(run, print) as job:
        assert job.running
        assert job.missing == ["away"]
    with pytest.raises(typer.Exit) as ended:
        hosts_job.stop_job(run, at_once=False)
    assert ended.value.exit_code == coordinator.wait(10.0) == PreemptedError.exit_code
    said = " ".join(capfd.readouterr().err.split())
    assert "away is not reached by ssh: ssh: connect to host away port 22: No route to host" in said
    assert f"it is not known whether {', '.join(f'{name} on away' for name in OTHERS)} ended" in said


def test_what_was_not_told_to_end_at_once_is_not_said_to_be_stopped(
    run: Path, coordinator: "subprocess.Popen[bytes]"
) -> None:
    with pytest.raises(RoleError, match=r"2 of 5 replicas may still run; persia stop .* --now tries again"):
        hosts_job.stop_job(run, at_once=True)
    assert coordinator.wait(10.0) == -signal.SIGKILL


def test_logs_are_those_of_machines_in_reach_and_the_copies_of_the_others(
    run: Path, coordinator: "subprocess.Popen[bytes]", tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    logs(run)
    said = capfd.readouterr()
    assert said.out == "the coordinator is at work\nthe server was at work\n"
    assert "from away here is what was copied before" in said.err
    monkeypatch.setattr(jobs, "CATCH_UP_S", 0.5)
    (tmp_path / "cut-here").touch()
    logs(run)
    said = capfd.readouterr()
    assert said.out == "the coordinator is at work\nthe server was at work\n"
    assert "here cannot be reached by ssh; the job may go on; here is what was copied before" in said.err


def test_a_job_whose_coordinator_is_out_of_reach_is_not_said_to_be_stopped(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CATCH_UP_S", 0.1)
    (tmp_path / "cut").touch()
    with pytest.raises(UserError, match=r"^here cannot be reached by ssh; the job may go on$"):
        hosts_job.stop_job(run, at_once=False)

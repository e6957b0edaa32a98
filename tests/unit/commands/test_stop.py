"""`persia stop` of a job of this machine: the signal is for its own process, and no later one with that number."""

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from persia_cli.commands.follow import stop
from persia_cli.config.record import write_run
from persia_cli.engines.job import record_end
from persia_cli.engines.processes import RunningProcess, process_of
from persia_cli.errors import OrderlyEndError, PreemptedError, UserError
from persia_cli.main import app
from persia_cli.observe.journal import EVENTS, Journal
from persia_cli.plan.job import plan_job
from tests.support.runs import make_facts, make_run

LISTENER = """
import signal, sys
def end(number, frame):
    print("stopping", flush=True)
    sys.stdin.readline()
    sys.exit(75)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that takes signals as a driver or a coordinator does."""
    command = [sys.executable, "-c", LISTENER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout.readline() == b"ready\n"
        yield started
        started.kill()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    write_run(make_run(), folder / "config.yaml")
    return folder


def note_driver(run_dir: Path, process: RunningProcess) -> None:
    run = make_run()
    job = plan_job(run, make_facts(run, 100, 20), "train", run_dir).job
    job = replace(job, driver=process.pid, driver_began=process.started)
    (run_dir / "job.json").write_bytes(job.to_json())


@pytest.mark.parametrize("descriptors", [True, False], ids=["", "before Linux 5.3"])
def test_a_driver_is_signalled_and_waited_for(
    descriptors: bool, process: "subprocess.Popen[bytes]", run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not descriptors:
        monkeypatch.setattr(os, "pidfd_open", refused)
    note_driver(run_dir, process_of(process.pid))
    threading.Thread(target=stopped_after, args=(process, run_dir)).start()
    with pytest.raises(OrderlyEndError) as left:
        stop(run_dir)
    assert left.value.exit_code == PreemptedError.exit_code
    assert process.wait(10.0) == 75


def stopped_after(process: "subprocess.Popen[bytes]", run_dir: Path) -> None:
    """Record the end of a job before its process ends, as a driver does."""
    assert process.stdout.readline() == b"stopping\n"
    record_end(run_dir, phase="stopped", signal="SIGTERM")
    process.stdin.close()


def refused(pid: int) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_a_process_with_the_number_of_a_killed_driver_is_left_alone(
    process: "subprocess.Popen[bytes]", run_dir: Path
) -> None:
    other = process_of(process.pid)
    note_driver(run_dir, RunningProcess(other.pid, other.started - 1))
    journal = Journal(run_dir / EVENTS, alone=True)
    journal.write(event="began", pid=other.pid, host=socket.gethostname())
    journal.close()
    with pytest.raises(UserError, match=rf"the job of {run_dir} has ended: persia logs"):
        stop(run_dir)
    assert other.lives


@pytest.mark.parametrize("command", ["attach", "stop", "logs"])
def test_a_file_is_no_run_directory(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match=r"config\.yaml"):
        app([command, str(tmp_path / "config.yaml")], standalone_mode=False)

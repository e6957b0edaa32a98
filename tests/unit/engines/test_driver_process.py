"""The driver of a run: one at a time, known to other commands, with its exit code and phase in the end."""

import sys
from pathlib import Path

import pytest

from persia_cli.engines import driver_process
from persia_cli.engines.driver_process import (
    KILLED,
    ProcessDriver,
    driver_of,
    driver_record,
    driving,
    exit_code,
    start_driver,
)
from persia_cli.engines.job import record_end, recorded_end
from persia_cli.engines.signals import JobSignals, PreemptedNow
from persia_cli.errors import PreemptedError, RoleError, UserError
from persia_cli.observe.journal import EVENTS, read_journal
from tests.conftest import poll_for

PROGRAM = """
import os, signal, sys, time
text = sys.stdin.read()
if text == "wait":
    time.sleep(600)
print(text, os.getsid(0) == os.getpid(), sys.argv[1:])
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that takes the place of `persia drive`."""
    monkeypatch.setattr(driver_process, "python_module", lambda module: [sys.executable, "-c", PROGRAM])


@pytest.mark.usefixtures("program")
def test_it_has_a_separate_session_and_all_of_its_input(tmp_path: Path) -> None:
    process = start_driver(tmp_path / "run", ["resume=auto"], "input" * 100_000)
    driver = driver_of(tmp_path / "run")
    poll_for(lambda: not driver.running, 20.0, "the end of the driver")
    assert process.wait() == 0
    said = (tmp_path / "run/driver/driver.log").read_text()
    assert said.startswith("input" * 100_000 + " True ['drive', '--run-dir', ")
    assert said.endswith("'resume=auto']\n")


@pytest.mark.usefixtures("program")
def test_a_run_has_one_driver_and_one_that_is_killed_leaves_no_exit_code(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start_driver(run_dir, [], "wait")
    driver = driver_of(run_dir)
    assert driver.running
    for another in (lambda: start_driver(run_dir, [], "wait"), lambda: driving(run_dir).__enter__()):
        with pytest.raises(UserError, match=f"the run in {run_dir} still goes on; persia attach"):
            another()
    driver.kill()
    poll_for(lambda: not driver.running, 20.0, "the end of the driver")
    assert exit_code(run_dir) == KILLED
    process.wait()
    process = start_driver(run_dir, [], "wait")
    assert isinstance(driver_of(run_dir), ProcessDriver)
    driver_of(run_dir).stop(at_once=True)
    poll_for(lambda: not driver_of(run_dir).running, 20.0, "the end of the next driver")
    process.wait()


@pytest.mark.parametrize(
    ("end", "code"),
    [(None, 0), (PreemptedError("SIGTERM"), 75), (UserError("no data"), 2), (KeyboardInterrupt(), 130)],
)
def test_it_leaves_its_exit_code(end: BaseException | None, code: int, tmp_path: Path) -> None:
    def drive() -> None:
        with driving(tmp_path / "run"):
            if end is not None:
                raise end

    if end is None:
        drive()
    else:
        with pytest.raises(type(end)):
            drive()
    assert exit_code(tmp_path / "run") == code


@pytest.mark.parametrize("damaged", ["null", "[]", "{}", '{"host": "a", "process": null}', "{"])
def test_a_damaged_note_is_named(damaged: str, tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver/driver.json").write_text(damaged)
    with pytest.raises(UserError, match=r"driver\.json is damaged: it does not name the process that drives the job"):
        driver_record(tmp_path)


def test_a_driver_on_another_machine_is_for_a_command_there(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver/driver.json").write_text(
        '{"host": "far", "process": {"pid": 1, "started": 1}, "scheduler": "", "job": ""}'
    )
    with pytest.raises(UserError, match=f"the run in {tmp_path} was started on far; give this command there"):
        driver_of(tmp_path)


def signalled() -> JobSignals:
    signals = JobSignals()
    signals.name = "SIGTERM"
    return signals


def phases(run_dir: Path) -> list[str]:
    return [event["phase"] for event in read_journal(run_dir / EVENTS)]


def end_with(run_dir: Path, signals: JobSignals, last: str, raised: BaseException) -> None:
    """Raise an error after a phase, as a driver may."""
    with recorded_end(run_dir, signals):
        record_end(run_dir, phase=last)
        raise raised


@pytest.mark.parametrize("raised", [PreemptedNow("SIGTERM"), RoleError("coordinator-0 was killed by SIGUSR1")])
def test_a_signal_ends_a_job_to_go_on_later_but_not_one_that_is_done(tmp_path: Path, raised: BaseException) -> None:
    done, saving = tmp_path / "done", tmp_path / "saving"
    done.mkdir()
    saving.mkdir()
    end_with(done, signalled(), "done", raised)
    assert phases(done) == ["done"]
    with pytest.raises(PreemptedError, match="SIGTERM"):
        end_with(saving, signalled(), "saving", raised)
    assert phases(saving) == ["saving", "stopped"]


def test_a_replica_that_fails_without_a_signal_is_always_reported(tmp_path: Path) -> None:
    with pytest.raises(RoleError, match="embedding-server-0"):
        end_with(tmp_path, JobSignals(), "done", RoleError("embedding-server-0 ended with exit code 1"))

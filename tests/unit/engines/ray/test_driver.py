"""The driver of a job on a Ray cluster, as commands on its machine see it: running, what it said, how it ended."""

import json
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from persia_cli.commands.follow import attach, logs, stop
from persia_cli.config.compose import compose_run
from persia_cli.config.record import to_yaml
from persia_cli.data.read.facts import DatasetFacts
from persia_cli.engines.background import KILLED
from persia_cli.engines.ray.driver import DriverInput, RayDriver, driver_of, driving, is_submitted, start_driver, take
from persia_cli.errors import RoleError, UserError
from persia_cli.plan.job import JobPlan, plan_job
from tests.conftest import poll_for

NOWHERE = "127.0.0.1:9"
"""No Ray cluster is there."""


def plan_in(run_dir: Path) -> JobPlan:
    words = ["conf=synthetic", "cluster=ray", f"cluster.address='{NOWHERE}'", "checkpoint.at_end=false"]
    return plan_job(compose_run(words), DatasetFacts(3200, 320, 2, ("a", "b"), 1, "made up"), "train", run_dir)


def ended(run_dir: Path, code: int | None, *lines: str) -> RayDriver:
    """A driver that has said these lines, and has left its exit code unless it was killed."""
    folder = run_dir / "ray"
    folder.mkdir(parents=True)
    (folder / "driver.process").write_text(json.dumps({"pid": 1, "began": 1, "host": socket.gethostname()}))
    (folder / "driver.log").write_text("".join(f"{line}\n" for line in lines))
    if code is not None:
        (folder / "driver.end").write_text(f"{code}\n")
    driver = driver_of(run_dir)
    assert driver is not None
    return driver


def test_what_it_says_comes_once_up_to_its_error_which_keeps_its_lines_and_notes(tmp_path: Path) -> None:
    said = ["rollback  one", "error: the first; the end of its log:", "  a line", "error: the second", "a note"]
    driver = ended(tmp_path, 2, *said)
    assert (driver.running, driver.code) == (False, 2)
    assert driver.said() == ["rollback  one"]
    assert driver.said() == []
    failure = driver.failure()
    assert isinstance(failure, UserError)
    assert str(failure) == "the first; the end of its log:\n  a line\nthe second"
    assert failure.__notes__ == ["a note"]


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    driver = ended(tmp_path, 0, "whole")
    with driver.log.open("a") as log:
        log.write("ha")
        log.flush()
        assert driver.said() == ["whole"]
        log.write("lf\n")
    assert driver.said() == ["half"]


def test_one_that_was_killed_has_the_job_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    driver = ended(tmp_path, None, "rollback  one")
    assert driver.code == KILLED
    assert isinstance(driver.failure(), RoleError)
    assert f"was killed, and all has ended with it; persia resume {tmp_path} goes on" in str(driver.failure())


def test_a_process_that_drives_is_found_and_no_other_drives_beside_it(tmp_path: Path) -> None:
    def drive() -> None:
        with driving(tmp_path):
            driver = driver_of(tmp_path)
            assert driver is not None
            assert (driver.running, driver.start) == (True, None)
            for other in (lambda: driving(tmp_path).__enter__(), lambda: start_driver(plan_in(tmp_path), [])):
                with pytest.raises(UserError, match="still goes on; persia attach"):
                    other()
            sys.exit(75)

    with pytest.raises(SystemExit):
        drive()
    driver = driver_of(tmp_path)
    assert driver is not None
    assert (driver.running, driver.code) == (False, 75)


def test_a_job_of_another_machine_and_what_is_no_job_are_refused(tmp_path: Path) -> None:
    for command in (attach, stop):
        with pytest.raises(UserError, match="is not the run directory of a job"):
            command(tmp_path)
    ended(tmp_path, None)
    file = tmp_path / "ray/driver.process"
    file.write_text(file.read_text().replace(socket.gethostname(), "elsewhere"))
    for command in (attach, stop):
        with pytest.raises(UserError, match=r"was started on elsewhere; give this command there"):
            command(tmp_path)
    file.write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        attach(tmp_path)


def test_a_job_that_has_ended_is_not_stopped_and_its_driver_has_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path, 1, "error: no room")
    with pytest.raises(UserError, match=r"has ended; its log says how: persia logs .* driver"):
        stop(tmp_path)
    with pytest.raises(RoleError, match=r"^no room$"):
        attach(tmp_path)
    logs(tmp_path, "driver")
    assert capfd.readouterr().out == "error: no room\n"


def test_what_is_handed_over_is_the_plan_without_the_facts_of_the_data(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    given = tmp_path / "given"
    given.write_bytes(msgspec.json.encode(DriverInput(to_yaml(plan.run), plan.job, None, ["a=b"], "/a/t.json")))
    with given.open("rb") as source:
        taken, words, trace = take(source)
    assert (taken.run, taken.job, taken.replicas) == (plan.run, plan.job, plan.replicas)
    assert (words, trace) == (["a=b"], Path("/a/t.json"))


def test_ray_jobs_run_their_job_themselves() -> None:
    assert is_submitted({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"})
    assert not is_submitted({"RAY_ADDRESS": "auto"})


@pytest.mark.processes
def test_of_two_commands_at_once_one_starts_a_driver_and_the_other_leaves_all_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [sys.executable, "-c", "import signal; signal.pause()"]  # it has not come to note itself yet
    monkeypatch.setattr("persia_cli.engines.ray.driver.python_module", lambda name: waits)
    run_dir = tmp_path / "run"
    driver = start_driver(plan_in(run_dir), [])
    try:
        driver.log.write_text("said\n")
        with pytest.raises(UserError, match=r"still goes on; persia attach .*/run shows it, persia stop ends it"):
            start_driver(plan_in(run_dir), [])
        RayDriver(run_dir, is_new=True).forget()  # as a command does whose driver has ended
        assert driver.said() == ["said"]
    finally:
        driver.signal(signal.SIGKILL)
        assert driver.code == 137
    driver.forget()
    assert not run_dir.exists()


@pytest.mark.processes
def test_a_driver_runs_in_a_session_of_its_own_takes_a_signal_from_the_start_and_leaves_its_exit_code(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (persia-cli[ray])")
    run_dir = tmp_path / "run"
    driver = start_driver(plan_in(run_dir), ["conf=synthetic"])
    driver.signal(signal.SIGTERM)  # it waits until it is heeded
    poll_for(lambda: not driver.running, 60.0, "the end of the driver")
    assert driver.code == 75
    assert any("SIGTERM: " in line for line in driver.said())
    assert (run_dir / "ray/driver.end").read_text() == "75\n"
    driver.forget()
    assert not run_dir.exists()
    again = start_driver(plan_in(run_dir), ["conf=synthetic"])
    assert os.getsid(again._process.pid) == again._process.pid  # type: ignore[union-attr]
    poll_for(lambda: not again.running, 60.0, "the end of the driver")
    assert (again.code, again.said()) == (2, [])
    assert str(again.failure()) == (f"cluster.address={NOWHERE}: no Ray cluster is reached there: Connection refused")

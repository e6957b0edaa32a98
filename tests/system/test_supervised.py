"""Replicas started one by one with `--supervise`, each below a separate parent, outlive what a launcher's do."""

import os
import random
import signal
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import losses, train
from tests.support.launched import ENDLESS, pids_of
from tests.support.one_by_one import by_hand, end, start_again
from tests.support.small import STEPS, WORDS, figures

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]

SMALL = [*WORDS, "cluster=local", "train.log_every_steps=5"]
NAMES = ["data-loader-0", "embedding-worker-0", "embedding-server-0"]
LIMIT_S = 120.0


def wait_for_step(run_dir: Path, step: int) -> None:
    def reached() -> bool:
        lines = read_journal(run_dir / METRICS)
        return bool(lines and lines[-1]["step"] >= step)

    poll_for(reached, LIMIT_S, f"step {step}")


def wait_for_recoveries(run_dir: Path, number: int) -> None:
    def recovered() -> int:
        return sum(event["event"] == "recovered" for event in read_journal(run_dir / EVENTS))

    poll_for(lambda: recovered() >= number, LIMIT_S, f"{number} recoveries")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train(SMALL, tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.parametrize("names", [*([name] for name in NAMES), NAMES], ids="+".join)
def test_a_killed_process_gets_another_and_the_result_has_the_same_bits(
    undisturbed: JobResult, tmp_path: Path, names: list[str]
) -> None:
    run_dir = tmp_path / "run"
    with by_hand(SMALL, run_dir, supervise=True) as started:
        wait_for_step(run_dir, random.Random(str(names)).randrange(5, STEPS // 2))
        for name in names:
            os.kill(pids_of(run_dir)[name], signal.SIGKILL)
        codes = end(started)
    assert set(codes.values()) == {0}
    result = result_of(run_dir)
    assert sorted(e["replica"] for e in result.events if e["event"] == "recovered") == sorted(names)
    assert (losses(result), figures(result)) == (losses(undisturbed), figures(undisturbed))
    assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), newest_checkpoint(undisturbed.run_dir / CHECKPOINTS))


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_to_a_process_that_took_the_place_of_another_saves_and_ends_the_job(tmp_path: Path, name: str) -> None:
    run_dir = tmp_path / "run"
    with by_hand(ENDLESS, run_dir, supervise=True) as started:
        wait_for_step(run_dir, 5)
        os.kill(pids_of(run_dir)[name], signal.SIGKILL)
        wait_for_recoveries(run_dir, 1)
        os.kill(pids_of(run_dir)[name], signal.SIGTERM)
        codes = end(started)
    assert set(codes.values()) == {75}
    [stopped] = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "stopped"]
    assert (stopped["signal"], stopped["replica"]) == ("SIGTERM", name)
    assert newest_checkpoint(run_dir / CHECKPOINTS).name == f"step-{stopped['step']}"


def test_supervisors_that_are_killed_and_started_again_go_on_with_the_job(
    undisturbed: JobResult, tmp_path: Path
) -> None:
    run_dir, killed = tmp_path / "run", ["data-loader-0", "embedding-worker-0"]
    with by_hand(SMALL, run_dir, supervise=True) as started:
        for step, name in zip((STEPS // 4, STEPS // 2), killed, strict=True):
            wait_for_step(run_dir, step)
            started[name].kill()
            start_again(started, name, run_dir)
        codes = end(started)
    assert set(codes.values()) == {0}
    result = result_of(run_dir)
    assert sorted(e["replica"] for e in result.events if e["event"] == "recovered") == killed
    assert (losses(result), figures(result)) == (losses(undisturbed), figures(undisturbed))


def test_a_server_that_is_killed_with_its_supervisor_has_lost_its_memory_and_ends_the_job(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with by_hand(ENDLESS, run_dir, supervise=True) as started:
        wait_for_step(run_dir, 5)
        started["embedding-server-0"].kill()
        start_again(started, "embedding-server-0", run_dir)
        codes = end(started)
    assert (codes["coordinator-0"], codes["embedding-server-0"]) == (1, 1)
    [failed] = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "failed"]
    assert failed["error"] == "embedding-server-0 was killed with its supervisor, so its memory is lost"


def test_a_supervisor_that_is_killed_takes_its_process_with_it_and_ends_the_job(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with by_hand([*ENDLESS, "cluster.silence_timeout_s=6"], run_dir, supervise=True) as started:
        wait_for_step(run_dir, 5)
        started["embedding-worker-0"].kill()
        codes = end(started)
    assert codes.pop("embedding-worker-0") == -signal.SIGKILL
    assert codes["coordinator-0"] == 1
    [failed] = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "failed"]
    assert "embedding-worker-0" in failed["error"]

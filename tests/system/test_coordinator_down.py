"""What is asked of a job whose coordinator dies before it has taken note is done by the next one."""

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from persia_cli.errors import PreemptedError
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.roles.coordinator.epoch import EPOCHS
from persia_cli.roles.coordinator.input_log import LOG
from persia_cli.store.manifest import CHECKPOINTS, finished_steps, newest_checkpoint
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train
from tests.support.launched import ENDLESS, Launched, running
from tests.support.one_by_one import by_hand, end
from tests.system.test_takeover import (
    LIMIT_S,
    WORDS,
    coordinator_of,
    kill_when,
    last_step,
    lines,
    story,
    takeovers,
    without_windows,
)  # fmt: skip

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

OFTEN = ["recovery.max_restarts=30", "recovery.window_s=0.5"]


def waits_for(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process that is stopped, and so has not taken it (Linux, proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = next(line for line in status if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) >> (number - 1) & 1)


def die_with_a_signal(run_dir: Path, number: signal.Signals, send: Callable[[], object]) -> object:
    """Have a signal come to the coordinator, which dies before it can take it; return what `send` returned."""
    pid = coordinator_of(run_dir)
    os.kill(pid, signal.SIGSTOP)
    poll_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, LIMIT_S, "the coordinator to stand still")
    sent = send()
    poll_for(lambda: waits_for(pid, number), LIMIT_S, "the signal")
    os.kill(pid, signal.SIGKILL)
    return sent


def require_saved(run_dir: Path, name: str) -> None:
    [stopped] = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "stopped"]
    assert stopped["signal"] == name
    assert newest_checkpoint(run_dir / CHECKPOINTS).name == f"step-{stopped['step']}"


@pytest.mark.slow
def test_the_end_that_a_dead_coordinator_was_asked_for(tmp_path: Path) -> None:
    with Launched([*ENDLESS, *OFTEN, "checkpoint.keep=9"], tmp_path / "run") as job:
        pids = job.wait_for_training()
        die_with_a_signal(job.run_dir, signal.SIGUSR1, lambda: job.process.send_signal(signal.SIGTERM))
        code, _ = job.end(LIMIT_S)
        assert code == PreemptedError.exit_code, job.output
        assert len(takeovers(job.run_dir)) == 1
        require_saved(job.run_dir, "SIGUSR1")
        assert not running(pids)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_while_there_is_no_coordinator(tmp_path: Path, number: signal.Signals) -> None:
    """The second death within `recovery.window_s` is followed by a second without a coordinator."""
    with Launched([*ENDLESS, "recovery.max_restarts=5"], tmp_path / "run") as job:
        job.wait_for_training()
        kill_when(job, lambda: last_step(job.run_dir) >= 20, "step 20")
        poll_for(lambda: takeovers(job.run_dir), LIMIT_S, "another coordinator")
        pid = kill_when(job, lambda: True, "now")
        poll_for(lambda: not running({"coordinator": pid}), LIMIT_S, "its end")
        job.process.send_signal(number)
        code, _ = job.end(LIMIT_S)
        assert code == PreemptedError.exit_code, job.output
        require_saved(job.run_dir, "SIGUSR1")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_supervisor_tells_the_next_process_too(tmp_path: Path, number: signal.Signals) -> None:
    run_dir = tmp_path / "run"
    with by_hand(ENDLESS, run_dir, supervise=True) as started:
        poll_for(lambda: last_step(run_dir) >= 5, LIMIT_S, "steps trained")
        die_with_a_signal(run_dir, number, lambda: started["coordinator-0"].send_signal(number))
        codes = end(started)
    assert set(codes.values()) == {PreemptedError.exit_code}
    require_saved(run_dir, "SIGUSR1")


@pytest.mark.slow
def test_a_supervised_coordinator_outlives_deaths_as_a_launched_one(tmp_path: Path) -> None:
    words = [*WORDS, "train.steps=240"]
    straight = train([*words, "cluster=embedded"], tmp_path / "straight")
    run_dir = tmp_path / "run"
    with by_hand(words, run_dir, supervise=True) as started:
        for number, step in enumerate((30, 90, 150), 1):
            poll_for(lambda step=step: last_step(run_dir) >= step, LIMIT_S, f"step {step}")
            os.kill(coordinator_of(run_dir), signal.SIGKILL)
            poll_for(lambda number=number: len(takeovers(run_dir)) == number, LIMIT_S, "another coordinator")
        codes = end(started)
    assert set(codes.values()) == {0}
    assert lines(run_dir) == lines(straight.run_dir)
    assert story(run_dir) == story(straight.run_dir)
    assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))
    assert not (run_dir / LOG).exists()


@pytest.mark.slow
def test_a_supervised_coordinator_that_is_told_twice_to_end_while_it_is_down_is_not_started_again(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    with by_hand([*ENDLESS, "cluster.silence_timeout_s=6"], run_dir, supervise=True) as started:
        supervisor = started["coordinator-0"]
        poll_for(lambda: last_step(run_dir) >= 5, LIMIT_S, "steps trained")
        for number in (1, 2, 3):
            pid = coordinator_of(run_dir)
            os.kill(pid, signal.SIGKILL)
            poll_for(lambda pid=pid: not running({"coordinator": pid}), LIMIT_S, "its end")
            if number < 3:
                poll_for(lambda number=number: len(takeovers(run_dir)) == number, LIMIT_S, "another coordinator")
        supervisor.send_signal(signal.SIGTERM)
        supervisor.send_signal(signal.SIGINT)
        poll_for(lambda: supervisor.poll() is not None, LIMIT_S, "the end of the supervisor")
        assert len(takeovers(run_dir)) == 2
        codes = end(started)
    assert 0 not in codes.values()


@pytest.mark.slow
def test_a_run_that_was_resumed_is_taken_over(tmp_path: Path) -> None:
    words = [*WORDS, "train.steps=100"]
    more = [*WORDS, "train.steps=260", "checkpoint.keep=1"]
    straight, run_dir = tmp_path / "straight", tmp_path / "run"
    for folder in (straight, run_dir):
        train([*words, "cluster=embedded"], folder)
    with Launched([*more, f"resume={straight}"], straight) as job:
        assert job.end(LIMIT_S)[0] == 0, job.output
    with Launched([*more, f"resume={run_dir}"], run_dir) as job:
        # The checkpoint that the job began with has gone by then.
        for number, step in enumerate((110, 160, 220), 1):
            kill_when(job, lambda step=step: last_step(run_dir) >= step, f"step {step}")
            poll_for(lambda number=number: len(takeovers(run_dir)) == number, LIMIT_S, "another coordinator")
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
    assert lines(run_dir) == lines(straight)
    assert story(run_dir) == story(straight)
    assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), newest_checkpoint(straight / CHECKPOINTS))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_it_dies_while_it_is_told_what_the_one_before_was_told(tmp_path: Path, seed: int) -> None:
    """Each new process is killed somewhere between its first act, which is to take an epoch, and its takeover."""
    words, rng = [*WORDS, "train.steps=400", "checkpoint.every_minutes=0.02"], random.Random(seed)
    straight = train([*words, "cluster=embedded"], tmp_path / "straight")
    with Launched(words, tmp_path / "run") as job:
        for step in (60, 150, 240):
            kill_when(job, lambda step=step: last_step(job.run_dir) >= step, f"step {step}")
            for _ in range(3):
                kill_in_its_first_moments(job, rng)
            told = len(takeovers(job.run_dir))
            poll_for(
                lambda told=told: len(takeovers(job.run_dir)) > told or job.process.poll() is not None, LIMIT_S, "one"
            )
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
    assert lines(job.run_dir) == lines(straight.run_dir)
    figures = [line["step"] for line in read_journal(job.run_dir / METRICS) if line["split"] == "train"]
    assert figures == list(range(1, 401))
    assert_same_model(newest_checkpoint(job.run_dir / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))


def kill_in_its_first_moments(job: Launched, rng: random.Random) -> None:
    """Kill the coordinator's next process before or after it has read the log, at any point of that."""
    folder = job.run_dir / EPOCHS
    number = max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    poll_for(lambda: (folder / str(number + 1)).exists() or job.process.poll() is not None, LIMIT_S, "the next process")
    assert job.process.poll() is None, job.output
    wait_s, begin = rng.uniform(0.0, 0.6), time.monotonic()
    poll_for(lambda: time.monotonic() - begin > wait_s, 10.0, "a moment")
    for child in psutil.Process(job.process.pid).children():
        if "coordinator" in child.cmdline():
            child.kill()


@pytest.mark.slow
def test_a_log_that_finds_no_room_ends_the_job_by_name_and_it_can_be_resumed(tmp_path: Path) -> None:
    """What is not in the log has no effect, so nothing is wrong with what was recorded."""
    words = [*WORDS, "train.steps=240"]
    straight = train([*words, "cluster=embedded"], tmp_path / "straight")
    run_dir = tmp_path / "run"
    with Launched(words, run_dir) as job:
        poll_for(lambda: last_step(run_dir) >= 60 or job.process.poll() is not None, LIMIT_S, "step 60")
        pids, pid, log = job.pids(), coordinator_of(run_dir), run_dir / LOG
        os.kill(pid, signal.SIGSTOP)
        poll_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, LIMIT_S, "the coordinator to stand")
        assert log.stat().st_size > max((run_dir / name).stat().st_size for name in (EVENTS, METRICS))
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 10, hard))
        os.kill(pid, signal.SIGCONT)
        code, seconds = job.end(LIMIT_S)
        assert code == 2, job.output
        assert f"error: coordinator-0: cannot write {log}: it would be larger than files may be here" in job.output
        assert "Traceback" not in job.output
        assert seconds < 60
        assert not running(pids)
    [failed] = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "failed"]
    assert failed["exit_code"] == 2
    reached = lines(run_dir)
    assert reached == lines(straight.run_dir)[: len(reached)]
    with Launched([*words, "resume=auto"], run_dir) as job:
        assert job.end(LIMIT_S)[0] == 0, job.output
    assert without_windows(lines(run_dir)) == without_windows(lines(straight.run_dir))
    assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_job_that_ended_before_its_first_checkpoint_begins_again(tmp_path: Path, number: signal.Signals) -> None:
    """The same command, as a scheduler repeats it, in the folder of processes that left all that a job leaves."""
    run_dir = tmp_path / "run"
    words = [*WORDS, "checkpoint.every_steps=null", "resume=auto"]
    with Launched([*words, "train.steps=2000"], run_dir) as job:
        pids = job.wait_for_training()
        job.process.send_signal(number)
        poll_for(lambda: job.process.poll() is not None and not running(pids), LIMIT_S, "the end of all")
    assert finished_steps(run_dir / CHECKPOINTS) == []
    assert (run_dir / EPOCHS).exists()
    with Launched([*words, "train.steps=20"], run_dir) as job:
        assert job.end(LIMIT_S)[0] == 0, job.output
        assert "has no complete checkpoint, so it begins again" in job.output
    assert [line["step"] for line in read_journal(run_dir / METRICS) if line["split"] == "train"] == [*range(1, 21)]

"""When a job in its allocation begins again, is queued again, and ends, with programs that stand for Slurm's."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from persia_cli.commands import slurm_allocation
from persia_cli.commands.slurm_allocation import train_in_allocation
from persia_cli.config.compose import compose_run
from persia_cli.engines.job import SUBMITTED, JobResult, record
from persia_cli.engines.signals import ENDING_SIGNALS
from persia_cli.errors import PreemptedError, RoleError
from tests.conftest import poll_for
from tests.support.made_up_slurm import HOSTNAMES, put

REFUSED = """\
case "$1" in
requeue) echo "Requested operation is presently disabled" >&2; exit 1 ;;
*) echo "$3" ;;
esac
"""
NO_ANSWER = "echo 'sinfo: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
LOST = "echo 'n1 down*'"
MOST_STARTS = 20
START = Callable[[Path], None]


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    (tmp_path / "shop").mkdir()
    return tmp_path / "shop"


def turn(run_dir: Path, monkeypatch: pytest.MonkeyPatch, start: START, *words: str) -> None:
    """Run a job for one turn; each of its starts does this, and fails."""
    left = iter(range(MOST_STARTS))

    def to_its_end(*_: object) -> JobResult:
        next(left)
        start(run_dir)
        raise RoleError("nn-worker-0 on n1: it died")

    monkeypatch.setattr(slurm_allocation, "_to_its_end", to_its_end)
    train_in_allocation(compose_run(["conf=synthetic", "cluster=slurm", *words]), run_dir, requeues=True)


def saved_at(*steps: int) -> START:
    """A start that saves at the next of some steps, and at none if they are used up."""
    left = list(steps)

    def start(run_dir: Path) -> None:
        if left:
            record(run_dir, event="saved", step=left.pop(0), path="model")

    return start


def time_over(run_dir: Path) -> None:
    signal.raise_signal(signal.SIGUSR1)


def test_a_job_that_fails_again_and_again_ends_however_slowly(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch)
    starts = 0

    def start(run_dir: Path) -> None:
        nonlocal starts
        starts += 1
        now = 3600.0 * starts
        monkeypatch.setattr(time, "monotonic", lambda: now)

    with pytest.raises(RoleError, match="it died") as failed:
        turn(run_dir, monkeypatch, start, "recovery.max_restarts=2")
    assert starts == 3
    assert "did not get further" in failed.value.__notes__[0]


def test_restarts_begin_to_count_anew_where_the_model_was_saved_at_a_later_step(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch)
    starts = 0
    save = saved_at(10, 20, 30, 30, 20)

    def start(run_dir: Path) -> None:
        nonlocal starts
        starts += 1
        save(run_dir)

    with pytest.raises(RoleError):
        turn(run_dir, monkeypatch, start, "recovery.max_restarts=2")
    assert starts == 3 + 2


def test_a_job_whose_turns_save_nothing_more_is_queued_again_so_often(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch)
    record(run_dir, event="saved", step=10, path="model")
    for _ in range(6):
        with pytest.raises(SystemExit) as left:
            turn(run_dir, monkeypatch, time_over, "cluster.max_requeues=2")
        assert left.value.code == PreemptedError.exit_code
    assert (tmp_path / "bin/scontrol.said").read_text() == "requeue 17\n" * 2


def test_a_job_whose_turns_save_more_is_queued_again_each_time(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch)
    save = saved_at(*range(1, 7))

    def start(run_dir: Path) -> None:
        save(run_dir)
        time_over(run_dir)

    for _ in range(6):
        with pytest.raises(SystemExit):
            turn(run_dir, monkeypatch, start, "cluster.max_requeues=0")
    assert (tmp_path / "bin/scontrol.said").read_text() == "requeue 17\n" * 6


def test_a_failure_is_not_hidden_by_a_controller_that_does_not_answer(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "bin", monkeypatch, sinfo=NO_ANSWER)
    with pytest.raises(RoleError, match=r"^nn-worker-0 on n1: it died"):
        turn(run_dir, monkeypatch, lambda _: None, "recovery.max_restarts=1")
    said = " ".join(capsys.readouterr().err.split())
    assert "Slurm does not tell which machines are lost: sinfo: Unable to contact" in said
    assert said.count("the job begins again") == 1


@pytest.mark.parametrize(("scontrol", "counted"), [(HOSTNAMES, "1\n"), (REFUSED, "0\n")])
def test_a_job_that_slurm_does_not_queue_again_begins_again_in_place_and_it_does_not_count(
    scontrol: str, counted: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch, sinfo=LOST, scontrol=scontrol)
    with pytest.raises((RoleError, SystemExit)) as left:
        turn(run_dir, monkeypatch, lambda _: None, "recovery.max_restarts=1")
    assert isinstance(left.value, RoleError) == (scontrol == REFUSED)
    assert (run_dir / SUBMITTED / "requeues").read_text() == counted


def test_a_job_that_slurm_does_not_queue_again_at_the_end_of_its_time_ends_as_one_that_was_saved(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "bin", monkeypatch, scontrol=REFUSED)

    def start(run_dir: Path) -> None:
        saved_at(10)(run_dir)
        time_over(run_dir)

    with pytest.raises(SystemExit) as left:
        turn(run_dir, monkeypatch, start)
    assert left.value.code == PreemptedError.exit_code
    said = " ".join(capsys.readouterr().err.split())
    assert "the job is not queued again: scontrol: Requested operation is presently disabled" in said
    assert "everything is stopped; the model is saved in model" in said


def test_a_signal_that_came_before_the_job_could_be_queued_again_has_waited(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(SystemExit) as left:
            turn(run_dir, monkeypatch, lambda _: pytest.fail("the job has begun"))
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) >= set(ENDING_SIGNALS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert left.value.code == PreemptedError.exit_code
    assert (tmp_path / "bin/scontrol.said").read_text() == "requeue 17\n"


@pytest.mark.processes
def test_a_signal_does_not_kill_the_command_of_the_script_while_it_reads_its_job(run_dir: Path) -> None:
    words = [sys.executable, "-P", "-m", "persia_cli", "on-slurm", "--run-dir", str(run_dir)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        poll_for(lambda: blocks(process.pid, signal.SIGUSR1), 20.0, "the signals to be blocked")
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate("not: a job", timeout=20.0)
    assert (process.returncode, (run_dir / SUBMITTED / "end").read_text()) == (2, "2\n"), said


def blocks(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(mask, 16) >> (number - 1) & 1)

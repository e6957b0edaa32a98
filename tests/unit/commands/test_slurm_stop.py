"""`persia stop` of a job that Slurm has, by the states in which Slurm may have it."""

from pathlib import Path

import pytest

from persia_cli.commands import slurm_job
from persia_cli.commands.slurm_job import stop_on_slurm
from persia_cli.engines.slurm.queued import take_up
from persia_cli.errors import PreemptedError, UserError
from tests.support.made_up_slurm import put

SQUEUE = """\
if [ -e "$0.asked" ]; then echo "CANCELLED|None"; else echo "{state}|None"; fi
: > "$0.asked"
"""


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slurm_job, "STATE_S", 0.01)
    take_up(tmp_path / "shop", "17")
    return tmp_path / "shop"


def put_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> Path:
    """Put programs in place; returns the file with what scancel is told."""
    said = tmp_path / "bin/scancel.said"
    put(tmp_path / "bin", monkeypatch, squeue=SQUEUE.format(state=state), scancel='echo "$@" >> "$0.said"')
    return said


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING"])
def test_a_job_that_waits_leaves_the_queue(
    state: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = put_slurm(tmp_path, monkeypatch, state)
    stop_on_slurm(run_dir, at_once=False)
    assert said.read_text() == "17\n"
    assert "did not run, and has left the queue" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("state", "told"), [("RUNNING", "--batch --signal=TERM 17\n"), ("COMPLETING", None)])
def test_a_job_that_runs_is_told_and_one_that_ends_is_left_to_it(
    state: str, told: str | None, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = put_slurm(tmp_path, monkeypatch, state)
    with pytest.raises(SystemExit) as left:
        stop_on_slurm(run_dir, at_once=False)
    assert left.value.code == PreemptedError.exit_code
    assert (said.read_text() if said.exists() else None) == told


def test_a_job_that_is_suspended_is_ended_only_at_once_since_it_cannot_save(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = put_slurm(tmp_path, monkeypatch, "SUSPENDED")
    with pytest.raises(UserError, match=r"17 of Slurm is suspended, and cannot save its model.*--now"):
        stop_on_slurm(run_dir, at_once=False)
    assert not said.exists()
    (tmp_path / "bin/squeue.asked").unlink()
    with pytest.raises(SystemExit):
        stop_on_slurm(run_dir, at_once=True)
    assert said.read_text() == "17\n"

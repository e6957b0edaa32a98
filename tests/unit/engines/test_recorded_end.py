"""The end of a job as its launcher records it: by itself, by a signal, or by a signal that came when all was done."""

from pathlib import Path

import pytest

from persia_cli.engines.job import record_end, recorded_end
from persia_cli.engines.signals import JobSignals, PreemptedNow
from persia_cli.errors import PreemptedError, RoleError
from persia_cli.observe.journal import EVENTS, read_journal


def signalled() -> JobSignals:
    signals = JobSignals()
    signals.name = "SIGTERM"
    return signals


def phases(run_dir: Path) -> list[str]:
    return [event["phase"] for event in read_journal(run_dir / EVENTS)]


def end_with(run_dir: Path, signals: JobSignals, last: str, raised: BaseException) -> None:
    """Raise an error after a phase, as a launcher may."""
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

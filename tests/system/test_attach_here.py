"""A job of this machine is shown and ended by other commands, which know its run directory alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import poll_for
from tests.support.launched import ENDLESS, LIMIT_S, Launched

pytestmark = pytest.mark.slow


def started(output: Path, *words: str) -> "subprocess.Popen[bytes]":
    with output.open("wb") as file:
        command = [sys.executable, "-m", "persia_cli", *words]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def test_commands_show_it_stop_it_and_report_its_end(tmp_path: Path) -> None:
    run, shown, stopped, late = (tmp_path / name for name in ("run", "shown", "stopped", "late"))
    with Launched(ENDLESS, run) as job:
        job.wait_for_training()
        with started(shown, "attach", str(run)) as attach:
            poll_for(lambda: "training  step" in shown.read_text(), LIMIT_S, "the job on the screen")
            assert started(stopped, "stop", str(run)).wait(LIMIT_S) == 75, stopped.read_text()
            assert "everything is stopped; the model is saved in" in stopped.read_text()
            assert attach.wait(LIMIT_S) == 75, shown.read_text()
        assert "stopped on request: everything is stopped; the model is saved in" in shown.read_text()
    assert started(late, "attach", str(run)).wait(LIMIT_S) == 75
    assert "stopped on request: everything is stopped" in late.read_text()
    assert started(late, "stop", str(run)).wait(LIMIT_S) == 2
    assert "has ended: persia logs" in late.read_text()

"""The death of a sweep's point."""

import sys
from pathlib import Path

import pytest

from persia_cli.sweep import processes
from persia_cli.sweep.folder import PointOutcome
from persia_cli.sweep.points import Point
from persia_cli.sweep.processes import Sweep, Task

KILLED = "import os; os.kill(os.getpid(), 9)"


def test_a_point_that_was_killed_has_failed_and_the_next_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "python_module", lambda module: [sys.executable, "-c", KILLED])
    tasks = [Task(Point((), ()), "0", tmp_path / name, (), 1.0) for name in ("one", "two")]
    sweep, ended = Sweep(tmp_path, tasks, "auc", 1, 60.0), list[PointOutcome]()
    sweep.run(ended.append, lambda: None)
    assert [each.error for each in ended] == ["was killed by SIGKILL (out of memory?)"] * 2

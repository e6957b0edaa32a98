"""How the deaths of a sweep's points are told."""

import sys
from pathlib import Path

import pytest

from persia_cli.sweep import processes
from persia_cli.sweep.folder import PointOutcome
from persia_cli.sweep.points import Point
from persia_cli.sweep.processes import Sweep, Task

KILLED = "import os; os.kill(os.getpid(), 9)"


def test_a_point_whose_memory_ran_out_is_told_from_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 4\n")
    monkeypatch.setattr(processes, "counter_of", lambda: counter)
    monkeypatch.setattr(processes, "python_module", lambda module: [sys.executable, "-c", KILLED])
    tasks = [Task(Point((), ()), "0", tmp_path / name, (), 1.0) for name in ("one", "two")]
    sweep, ended = Sweep(tmp_path, tasks, "auc", 1, 60.0), list[PointOutcome]()
    counter.write_text("oom_kill 5\n")
    sweep.run(ended.append, lambda: None)
    assert [each.error for each in ended] == [
        "was killed by SIGKILL (probably out of memory)",
        "was killed by SIGKILL",
    ]

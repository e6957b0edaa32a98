"""The lines that a tracker gets: each once, whatever happens to the job, the tracker or the file."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from persia_cli.config.record import CONFIG, read_run
from persia_cli.loggers.feed import LoggerFeed, LoggerState, state_in
from persia_cli.loggers.logger import LOGGERS, Facts, Logger
from persia_cli.observe.journal import METRICS
from tests.support.logged import add_end, add_lines, made_up_run


class Notebook(Logger):
    """A tracker in memory; its next `refuses` calls raise."""

    def __init__(self) -> None:
        self.starts: list[Facts] = []
        self.configs: list[Mapping[str, Any]] = []
        self.lines: list[tuple[str, int]] = []
        self.metrics: list[Mapping[str, float]] = []
        self.ends: list[tuple[str, Mapping[str, float]]] = []
        self.refuses = 0

    def _call(self) -> None:
        if self.refuses:
            self.refuses -= 1
            raise ConnectionError("no route to the tracker")

    def start(self, facts: Facts, config: Mapping[str, Any]) -> str:
        self._call()
        self.starts.append(facts)
        self.configs.append(config)
        return "run-7"

    def line(self, split: str, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        self._call()
        self.lines.append((split, step))
        self.metrics.append(metrics)

    def artefact(self, path: Path, name: str) -> None:
        raise PermissionError("no place for files")

    def end(self, status: str, summary: Mapping[str, float]) -> None:
        self.ends.append((status, summary))


def feed(run_dir: Path, tracker: Notebook, ending: threading.Event | None = None) -> LoggerState:
    """Send a tracker what it lacks, as a new process does."""
    (run_dir / LOGGERS).mkdir(exist_ok=True)
    if ending is None:
        ending = threading.Event()
        ending.set()
    LoggerFeed("notebook", tracker, read_run(run_dir / CONFIG), run_dir, ending).run()
    return state_in(run_dir, "notebook")


def both(*steps: int) -> list[tuple[str, int]]:
    return [(split, step) for step in steps for split in ("train", "eval")]


def test_a_resumed_run_goes_on_where_the_tracker_is(tmp_path: Path) -> None:
    made_up_run(tmp_path, [10, 20], train={"batch_size": 32, "epochs": 3})
    add_end(tmp_path, "stopped")
    tracker = Notebook()
    feed(tmp_path, tracker)
    add_lines(tmp_path, [30])
    add_end(tmp_path, "done")
    state = feed(tmp_path, tracker)
    assert tracker.lines == both(10, 20, 30)
    assert [(facts.known, facts.step) for facts in tracker.starts] == [(None, 0), ("run-7", 20)]
    assert [status for status, _ in tracker.ends] == ["stopped", "done"]
    assert tracker.ends[-1][1]["auc"] == 1 - 1 / 30
    assert tracker.configs[0]["train.epochs"] == 3
    assert tracker.metrics[0].keys() == {"samples", "loss", "auc", "staleness_max", "samples_per_s"}
    assert (state.run, state.sent) == ("run-7", {"train": 30, "eval": 30})


@pytest.mark.parametrize("longer", [[30], [30, 40, 50]])
def test_steps_that_are_trained_again_are_not_sent_again(tmp_path: Path, longer: list[int]) -> None:
    """The file is cut at a checkpoint and grows again, past the place where the tracker was or not."""
    made_up_run(tmp_path, [10, 20, 30])
    tracker = Notebook()
    feed(tmp_path, tracker)
    lines = (tmp_path / METRICS).read_bytes().splitlines(keepends=True)
    (tmp_path / METRICS).write_bytes(b"".join(lines[:3]))  # Not the evaluation of step 20.
    add_lines(tmp_path, longer, loss=0.123456789)
    feed(tmp_path, tracker)
    assert tracker.lines == both(10, 20, 30, *longer[1:])


def test_an_outage_is_caught_up_and_counted(tmp_path: Path) -> None:
    made_up_run(tmp_path, [10, 20])
    tracker, ending = Notebook(), threading.Event()
    tracker.refuses = 1
    thread = threading.Timer(1.5, ending.set)
    thread.start()
    state = feed(tmp_path, tracker, ending)
    thread.join()
    assert tracker.lines == both(10, 20)
    assert state.failures == 2  # One of them is the file that it never takes.
    assert state.error == "ConnectionError: no route to the tracker"


def test_what_a_dead_tracker_lacks_comes_with_the_next_start(tmp_path: Path) -> None:
    made_up_run(tmp_path, [10, 20])
    tracker = Notebook()
    feed(tmp_path, tracker)
    add_lines(tmp_path, [30, 40])
    tracker.refuses = 1
    state = feed(tmp_path, tracker)
    assert [state.lacks({"split": "eval", "step": step}) for step in (20, 30)] == [False, True]
    feed(tmp_path, tracker)
    assert tracker.lines == both(10, 20, 30, 40)


def test_a_kill_while_it_catches_up_costs_a_second_of_it(tmp_path: Path) -> None:
    made_up_run(tmp_path, range(10, 50, 10))
    known: list[int] = []

    class Slow(Notebook):
        def line(self, split: str, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
            known.append(sum(state_in(tmp_path, "notebook").sent.values()))
            time.sleep(0.3)

    feed(tmp_path, Slow())
    assert known[-1] > 0

"""Metrics for TensorBoard: its own reader finds the content of `metrics.jsonl`."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from persia_cli.observe.journal import EVENTS, METRICS, Journal, read_journal
from persia_cli.observe.record import RunRecord
from persia_cli.observe.tensorboard import FOLDER
from tests.support.recorded import GRID
from tests.support.runs import make_run
from tests.unit.observe.test_run_record import made_up

READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
scalars = {tag: [(s.step, s.wall_time, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
print(json.dumps(scalars))
"""
"""TensorBoard itself reads the scalars of a folder, in a separate process, since its warnings would fail the test."""

Scalars = dict[str, list[tuple[int, float, float]]]


def read_back(run_dir: Path) -> Scalars:
    """Return step, time and value of all scalars by tag."""
    ended = subprocess.run([sys.executable, "-c", READER, str(run_dir / FOLDER)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return {tag: [(step, time_s, value) for step, time_s, value in of] for tag, of in json.loads(ended.stdout).items()}


def test_a_run_writes_what_its_metrics_have(tmp_path: Path) -> None:
    run = make_run(train={"batch_size": 12, "tensorboard": True})
    events = Journal(tmp_path / EVENTS)
    record = RunRecord(tmp_path, events, run, GRID, 0, 0)
    for number in (1, 2, 3):
        record.add_report(0, number, *made_up(0, number))
    record.close()
    events.close()
    lines = read_journal(tmp_path / METRICS)
    losses = read_back(tmp_path)["train/loss"]
    assert [step for step, _, _ in losses] == [line["step"] for line in lines]
    assert [value for _, _, value in losses] == [float(np.float32(line["loss"])) for line in lines]

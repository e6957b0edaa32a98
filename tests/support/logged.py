"""Made-up runs with lines of metrics, for loggers, and what trackers have of them."""

import json
import socket
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from persia_cli.config.record import CONFIG, write_run
from persia_cli.observe.journal import EVENTS, METRICS, Journal
from tests.support.runs import make_run

Points = dict[str, list[tuple[int, float]]]
"""(step, value) of each metric, in order."""

TENSORBOARD_READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""
"""TensorBoard itself reads a folder, in a separate process, since its warnings would fail a test."""


def free_port() -> int:
    """Return a port of the loopback interface that nothing uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def made_up_run(run_dir: Path, steps: Iterable[int] = (), **settings: Any) -> None:
    """Write a run's configuration, and a line of training and of an evaluation for each step."""
    run_dir.mkdir(exist_ok=True)
    write_run(make_run(**settings), run_dir / CONFIG)
    add_lines(run_dir, steps)


def add_lines(run_dir: Path, steps: Iterable[int], loss: float = 0.5) -> None:
    """Append lines to a run's metrics."""
    journal = Journal(run_dir / METRICS)
    for step in steps:
        line = {"step": step, "samples": 32 * step, "loss": loss, "auc": 1 - 1 / step, "staleness_max": 1}
        journal.write(split="train", samples_per_s=100.0, staleness=[{"1": 4}], ne=None, **line)
        journal.write(split="eval", **line, **{"recall@10": 0.25})
    journal.close()


def add_end(run_dir: Path, phase: str) -> None:
    """Append the last phase of a job."""
    journal = Journal(run_dir / EVENTS)
    journal.write(event="phase", phase=phase)
    journal.close()


def in_tensorboard(folder: Path) -> Points:
    """Return the scalars that TensorBoard finds in a folder."""
    ended = subprocess.run([sys.executable, "-c", TENSORBOARD_READER, str(folder)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return {tag: [(step, value) for step, value in of] for tag, of in json.loads(ended.stdout).items()}


def in_trackio(folder: Path, project: str) -> dict[str, Points]:
    """Return the metrics of each run in trackio's file."""
    found: dict[str, Points] = {}
    database = sqlite3.connect(folder / f"{project}.db")
    for run, step, metrics in database.execute("select run_name, step, metrics from metrics order by id"):
        for name, value in json.loads(metrics).items():
            found.setdefault(run, {}).setdefault(name, []).append((step, value))
    database.close()
    return found


def in_mlflow(file: Path, run: str) -> Points:
    """Return the metrics of a run in the database of an MLflow server."""
    found: Points = {}
    database = sqlite3.connect(file)
    order = "select key, step, value from metrics where run_uuid = ? order by key, step"
    for name, step, value in database.execute(order, [run]):
        found.setdefault(name, []).append((step, value))
    database.close()
    return found


def in_wandb(file: Path) -> list[dict[str, Any]]:
    """Return the rows of the history in a file that W&B has written offline, each with its `_step`."""
    from wandb.proto import wandb_internal_pb2 as messages

    rows = []
    for content in _records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            values = {
                each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in record.history.item
            }
            rows.append({"_step": record.history.step.num} | values)
    return rows


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, after 7 bytes that name the format."""
    position, record, block = 7, b"", 32768
    while position + 7 <= len(content):
        if block - position % block < 7:
            position += block - position % block
            continue
        _, size, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""

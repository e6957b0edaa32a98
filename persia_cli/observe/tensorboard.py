"""The metrics of a run in TensorBoard's format, in addition to `metrics.jsonl`."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
"""Folder of the event file in a run directory; `tensorboard --logdir runs` finds those of all runs."""
FILE_VERSION = "brain.Event:2"
"""First record of an event file, which identifies the format for TensorBoard."""

NO_METRICS = ("time", "step", "split")
"""Fields of a line of metrics that are not metrics."""


class TensorBoardWriter:
    """A writer of each metric of a line of metrics as a scalar `SPLIT/METRIC` at the line's step."""

    # It writes records at once in the caller's thread. TensorBoard's own writer uses a second thread, and blocks its
    # caller forever if that thread dies on a full disk.

    def __init__(self, run_dir: Path) -> None:
        """Create an event file; raises OSError if it cannot be written."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        now = time.time()
        folder = run_dir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(path.open("xb", buffering=0))
        self._add(wall_time=now, file_version=FILE_VERSION)

    def write(self, line: Mapping[str, Any], time_s: float) -> None:
        """Add a line of metrics that was written at `time_s`, seconds since 1970; raises OSError if that fails."""
        metrics = {name: value for name, value in line.items() if name not in NO_METRICS and _is_number(value)}
        values = [
            self._summary.Value(tag=f"{line['split']}/{name}", simple_value=float(value))
            for name, value in metrics.items()
        ]
        self._add(wall_time=time_s, step=line["step"], summary=self._summary(value=values))

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(**fields).SerializeToString())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Metrics in TensorBoard's format: each is a scalar `SPLIT/METRIC`."""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from persia_cli.loggers.logger import TENSORBOARD, Facts, Logger

FILE_VERSION = "brain.Event:2"
"""First record of an event file, which identifies the format for TensorBoard."""


class TensorBoard(Logger):
    """A writer of an event file for each start of the run."""

    # It writes records at once in the caller's thread. TensorBoard's own writer uses a second thread, and blocks its
    # caller forever if that thread dies on a full disk.

    def start(self, facts: Facts, config: Mapping[str, Any]) -> str:
        """Create an event file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        now = time.time()
        folder = facts.folder.parent / TENSORBOARD
        folder.mkdir(exist_ok=True)
        path = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(path.open("xb", buffering=0))
        self._add(wall_time=now, file_version=FILE_VERSION)
        return path.name

    def line(self, split: str, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        """Write a record."""
        values = [self._summary.Value(tag=f"{split}/{name}", simple_value=value) for name, value in metrics.items()]
        self._add(wall_time=time_s, step=step, summary=self._summary(value=values))

    def end(self, status: str, summary: Mapping[str, float]) -> None:
        """Close the file."""
        self._records.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(**fields).SerializeToString())

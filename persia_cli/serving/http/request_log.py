"""The request log of a worker: a sample of the answered requests, in files that are read as a data set."""

import logging
import queue
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.disk import disk_error
from persia_cli.errors import DataError, UserError, count
from persia_cli.serving.columns import Lists
from persia_cli.serving.http.log_files import LogFile, remove_abandoned
from persia_cli.serving.http.metrics import ServingMetrics
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.sample_columns import SampleColumns

log = logging.getLogger(__name__)

MAX_REQUESTS, MAX_BYTES = 4096, 2**25
"""Maximum number of pending requests, and of bytes of their rows, about; one more is not logged."""
LARGEST = 2**27
"""Bytes of the rows of a request that is logged if none is pending; a value for all samples is in each row."""
COLUMNS = {
    "request_id": pa.string(), "request_time": pa.timestamp("us", "UTC"), "model_version": pa.string(),
}  # fmt: skip
"""Columns of a file besides those of the data set and the predictions."""


class _Answered(NamedTuple):
    """A request that was answered."""

    id: str
    version: str
    """Of the model."""
    time: float
    """Time of the answer, in seconds since 1970."""
    columns: Mapping[str, Any]
    values: NDArray[np.float32]
    """Predictions float32 [samples, outputs]."""
    nbytes: int
    """Bytes of its rows, about."""


class Rotation(NamedTuple):
    """The times and sizes at which pending requests are written, and at which a file is complete."""

    flush_s: float = 1.0
    seconds: float = 60.0
    rows: int = 2**18
    nbytes: int = 2**28


class RequestLog:
    """Takes requests from the event loop, and writes them in its own thread.

    `offer` never waits. Requests that cannot be written are counted, and serving goes on. A killed worker loses the
    requests since its last complete file.
    """

    def __init__(
        self, folder: Path, predictor: Predictor, sample: float, metrics: ServingMetrics,
        rotation: Rotation | None = None,
    ) -> None:  # fmt: skip
        """Start the thread. Raises UserError for the model's fields."""
        self._folder, self._metrics, self._rotation = folder, metrics, rotation or Rotation()
        self._columns = SampleColumns(predictor.fields)
        self._schema = _schema(self._columns, [output.name for output in predictor.description.outputs])
        self._sample, self._draw = sample, random.Random()
        self._waiting: queue.SimpleQueue[_Answered] = queue.SimpleQueue()
        self._held, self._held_bytes, self._lock = 0, 0, threading.Lock()
        self._wake, self._ending = threading.Event(), threading.Event()
        self._file: LogFile | None = None
        self._is_failing, self._has_refused = False, False
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def draw(self) -> bool:
        """Return True if the next request is in the sample; each is with the same probability, independently."""
        return self._draw.random() < self._sample

    def offer(
        self, name: str, version: str, columns: Mapping[str, Any], values: NDArray[np.float32], nbytes: int
    ) -> None:
        """Pass a request, whose body has so many bytes, to the thread, with the model's version and predictions.

        It is counted as not logged if too many are pending, or if its rows would be too large.
        """
        request = _Answered(name, version, time.time(), columns, values, nbytes + self._expanded(name, columns, values))
        if request.nbytes > LARGEST:
            self._metrics.not_logged.labels("large").inc()
            return
        with self._lock:
            takes = self._held < MAX_REQUESTS and (not self._held or self._held_bytes + request.nbytes <= MAX_BYTES)
            if takes:
                self._held += 1
                self._held_bytes += request.nbytes
        if not takes:
            self._metrics.not_logged.labels("full").inc()
            return
        self._waiting.put(request)
        if 2 * self._held > MAX_REQUESTS or 2 * self._held_bytes > MAX_BYTES:
            self._wake.set()

    def _expanded(self, name: str, columns: Mapping[str, Any], values: NDArray[np.float32]) -> int:
        """Return about how many bytes a request's rows have more than its body."""
        samples = len(values)
        repeated = sum(map(_bytes_of, columns.values())) if samples > 1 else 0
        return samples * (len(name) + 8 * len(self._schema) + repeated)

    def close(self, limit_s: float) -> None:
        """Write the pending requests; stops after `limit_s` seconds."""
        self._ending.set()
        self._wake.set()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            file = self._file
            late = self._held + (1 if file is None else file.requests)
            self._metrics.not_logged.labels("late").inc(late)
            log.warning("the request log was not written within %g s, and lacks %s", limit_s, count(late, "request"))

    def _run(self) -> None:
        if removed := remove_abandoned(self._folder):
            log.warning("%s of the request log that a killed worker had begun are lost", count(removed, "file"))
        is_last = False
        while not is_last:
            self._wake.wait(self._rotation.flush_s)
            self._wake.clear()
            is_last = self._ending.is_set()
            try:
                self._take()
                self._publish(is_last)
            except Exception as error:
                self._fail(error)
        if self._held:
            self._metrics.not_logged.labels("disk").inc(self._held)

    def _take(self) -> None:
        """Move the pending requests into the file."""
        for request in iter(self._next, None):
            batch = self._batch(request)
            if batch is not None:
                if self._file is None:
                    self._file = LogFile(self._folder, self._schema)
                self._file.append(batch)

    def _next(self) -> _Answered | None:
        """Return the oldest pending request, if there is any."""
        try:
            request = self._waiting.get_nowait()
        except queue.Empty:
            return None
        with self._lock:
            self._held -= 1
            self._held_bytes -= request.nbytes
        return request

    def _publish(self, is_last: bool) -> None:
        """Publish the file if it is complete."""
        file, rules = self._file, self._rotation
        if file is None:
            return
        age = time.monotonic() - file.begin
        if is_last or age >= rules.seconds or file.rows >= rules.rows or file.nbytes >= rules.nbytes:
            file.publish()
            self._file = None
            self._metrics.logged.inc(file.requests)
            if self._is_failing:
                self._is_failing = False
                log.warning("requests are logged again in %s", self._folder)

    def _batch(self, request: _Answered) -> Any:
        """Return a request as a record batch; None, counted, if that fails."""
        try:
            return self._made(request)
        except DataError as error:
            if not self._has_refused:
                self._has_refused = True
                log.warning("a request is not logged; later ones are only counted: %s", error)
        except Exception:
            log.exception("a request could not be logged")
        self._metrics.not_logged.labels("failed").inc()
        return None

    def _made(self, request: _Answered) -> Any:
        samples = len(request.values)
        when = pa.scalar(round(request.time * 1e6), pa.timestamp("us", "UTC"))
        constants = [pa.repeat(value, samples) for value in (request.id, when, request.version)]
        scores = [pa.array(request.values[:, number].copy()) for number in range(request.values.shape[1])]
        columns = self._columns.arrays(request.columns, samples)
        return pa.RecordBatch.from_arrays([*constants, *columns, *scores], schema=self._schema)

    def _fail(self, error: Exception) -> None:
        """Abandon the file, count its requests as lost, and log the cause once."""
        file, self._file = self._file, None
        if file is not None:
            file.abandon()
        is_disk = isinstance(error, OSError)
        self._metrics.not_logged.labels("disk" if is_disk else "failed").inc(1 if file is None else file.requests)
        if not self._is_failing:
            self._is_failing = True
            sentence = disk_error(error, self._folder) if isinstance(error, OSError) else "the request log failed"
            log.warning(
                "%s; serving goes on, and requests that are not logged are counted", sentence,
                exc_info=None if is_disk else error,
            )  # fmt: skip


def _schema(columns: SampleColumns, outputs: list[str]) -> Any:
    needed = [*COLUMNS.items(), *((name, pa.float32()) for name in outputs)]
    if taken := [name for name, _ in needed if name in columns.names]:
        raise UserError(f"the model reads a column {taken[0]}, which the request log needs itself; leave out --log")
    schema = columns.schema()
    return pa.schema([*COLUMNS.items(), *schema, *((name, pa.float32()) for name in outputs)])


def _bytes_of(column: Any) -> int:
    """Return about how many bytes a column with one value for all samples has for each; 0 for other columns."""
    if isinstance(column, Lists):
        if len(column.lengths) != 1:
            return 0
        return sum(map(_bytes_of_value, column.values)) if isinstance(column.values, list) else column.values.nbytes
    return _bytes_of_value(column[0]) if len(column) == 1 else 0


def _bytes_of_value(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_bytes_of_value, value))
    return 4 * len(value) if isinstance(value, (str, bytes)) else 8

"""The request log of a worker: a sample of the requests that it answers, in files that are read as a data set."""

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
from persia_cli.serving.http.figures import ServingFigures
from persia_cli.serving.http.log_files import LogFile, remove_abandoned
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.sample_columns import SampleColumns

log = logging.getLogger(__name__)

MOST_REQUESTS, MOST_BYTES = 4096, 2**25
"""Requests that wait to be written, and bytes of their rows, about; one more is not logged."""
LARGEST = 2**27
"""Bytes of the rows of a request that is logged though nothing else waits; what stands for all samples is in each."""
COLUMNS = {
    "request_id": pa.string(), "request_time": pa.timestamp("us", "UTC"), "model_version": pa.string(),
}  # fmt: skip
"""What a file has beside the columns of the data set and the predictions."""


class _Answered(NamedTuple):
    """A request that was answered."""

    id: str
    time: float
    """Seconds since 1970, when it was answered."""
    columns: Mapping[str, Any]
    values: NDArray[np.float32]
    """Predictions float32 [samples, outputs]."""
    nbytes: int
    """Of its rows, about."""


class Rotation(NamedTuple):
    """The times and sizes at which requests are taken from those that wait, and at which a file is complete."""

    flush_s: float = 1.0
    seconds: float = 60.0
    rows: int = 2**18
    nbytes: int = 2**28


class RequestLog:
    """Takes requests from the event loop, and writes them by a thread of its own.

    `offer` never waits. What cannot be written is counted, and serving goes on. What a killed worker has answered since
    its last whole file is lost.
    """

    def __init__(
        self, folder: Path, predictor: Predictor, sample: float, figures: ServingFigures,
        rotation: Rotation | None = None,
    ) -> None:  # fmt: skip
        """Start the thread. Raises UserError for a model's fields."""
        self._folder, self._figures, self._rotation = folder, figures, rotation or Rotation()
        self._version = str(predictor.description.step)
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
        """Return whether the next request is in the sample; each is with the same probability, alone."""
        return self._draw.random() < self._sample

    def offer(self, name: str, columns: Mapping[str, Any], values: NDArray[np.float32], nbytes: int) -> None:
        """Have a request, whose body has so many bytes, written later, with its predictions.

        It is counted as not logged if too much is waiting, or if its rows would be too large.
        """
        request = _Answered(name, time.time(), columns, values, nbytes + self._expanded(name, columns, values))
        if request.nbytes > LARGEST:
            self._figures.not_logged.labels("large").inc()
            return
        with self._lock:
            takes = self._held < MOST_REQUESTS and (not self._held or self._held_bytes + request.nbytes <= MOST_BYTES)
            if takes:
                self._held += 1
                self._held_bytes += request.nbytes
        if not takes:
            self._figures.not_logged.labels("full").inc()
            return
        self._waiting.put(request)
        if 2 * self._held > MOST_REQUESTS or 2 * self._held_bytes > MOST_BYTES:
            self._wake.set()

    def _expanded(self, name: str, columns: Mapping[str, Any], values: NDArray[np.float32]) -> int:
        """Return about how many bytes a request's rows have beside what its body has for each."""
        samples = len(values)
        repeated = sum(map(_bytes_of, columns.values())) if samples > 1 else 0
        return samples * (len(name) + 8 * len(self._schema) + repeated)

    def close(self, limit_s: float) -> None:
        """Write what waits; gives up after `limit_s` seconds."""
        self._ending.set()
        self._wake.set()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            file = self._file
            late = self._held + (1 if file is None else file.requests)
            self._figures.not_logged.labels("late").inc(late)
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
            self._figures.not_logged.labels("disk").inc(self._held)

    def _take(self) -> None:
        """Move the requests that wait into the file."""
        for request in iter(self._next, None):
            batch = self._batch(request)
            if batch is not None:
                if self._file is None:
                    self._file = LogFile(self._folder, self._schema)
                self._file.append(batch)

    def _next(self) -> _Answered | None:
        """Return the request that waits longest, if there is any."""
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
            self._figures.logged.inc(file.requests)
            if self._is_failing:
                self._is_failing = False
                log.warning("requests are logged again in %s", self._folder)

    def _batch(self, request: _Answered) -> Any:
        """Return a request as a record batch; None, counted, if that cannot be."""
        try:
            return self._made(request)
        except DataError as error:
            if not self._has_refused:
                self._has_refused = True
                log.warning("a request is not logged, and of more such ones only the number is told: %s", error)
        except Exception:
            log.exception("a request could not be logged")
        self._figures.not_logged.labels("failed").inc()
        return None

    def _made(self, request: _Answered) -> Any:
        samples = len(request.values)
        when = pa.scalar(round(request.time * 1e6), pa.timestamp("us", "UTC"))
        own = [pa.repeat(each, samples) for each in (request.id, when, self._version)]
        scores = [pa.array(request.values[:, number].copy()) for number in range(request.values.shape[1])]
        columns = self._columns.arrays(request.columns, samples)
        return pa.RecordBatch.from_arrays([*own, *columns, *scores], schema=self._schema)

    def _fail(self, error: Exception) -> None:
        """Give up the file, count its requests as lost, and log the cause once."""
        file, self._file = self._file, None
        if file is not None:
            file.abandon()
        is_disk = isinstance(error, OSError)
        self._figures.not_logged.labels("disk" if is_disk else "failed").inc(1 if file is None else file.requests)
        if not self._is_failing:
            self._is_failing = True
            sentence = disk_error(error, self._folder) if isinstance(error, OSError) else "the request log failed"
            log.warning(
                "%s; serving goes on, and requests that are not logged are counted", sentence,
                exc_info=None if is_disk else error,
            )  # fmt: skip


def _schema(columns: SampleColumns, outputs: list[str]) -> Any:
    own = [*COLUMNS.items(), *((name, pa.float32()) for name in outputs)]
    if taken := [name for name, _ in own if name in columns.names]:
        raise UserError(f"the model reads a column {taken[0]}, which the request log needs itself; leave out --log")
    schema = columns.schema()
    return pa.schema([*COLUMNS.items(), *schema, *((name, pa.float32()) for name in outputs)])


def _bytes_of(column: Any) -> int:
    """Return about how many bytes each sample of a column has that has one value for all of them; 0 for others."""
    if isinstance(column, Lists):
        if len(column.lengths) != 1:
            return 0
        return sum(map(_bytes_of_value, column.values)) if isinstance(column.values, list) else column.values.nbytes
    return _bytes_of_value(column[0]) if len(column) == 1 else 0


def _bytes_of_value(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_bytes_of_value, value))
    return 4 * len(value) if isinstance(value, (str, bytes)) else 8

"""The request log of a worker: a sample of the requests that it answers, in files that are read as a data set."""

import logging
import queue
import random
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.disk import disk_error
from persia_cli.errors import DataError, UserError, count, one_line
from persia_cli.server.figures import ServingFigures
from persia_cli.server.log_files import PendingFile, publish_abandoned
from persia_cli.serving.columns import Lists
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.sample_columns import SampleColumns

log = logging.getLogger(__name__)

MOST_REQUESTS, MOST_BYTES = 4096, 2**25
"""Requests that wait to be written, and bytes of their rows, about; one more is not logged."""
LARGEST = 2**27
"""Bytes of the rows of a request that is logged though nothing else waits; what stands for all samples is in each."""
GROUP_BYTES = 2**22
"""Bytes of requests that are added to a file together, as one record batch."""
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
    """When requests that wait are added to a file, and when it is complete."""

    flush_s: float = 1.0
    seconds: float = 60.0
    rows: int = 2**18
    nbytes: int = 2**28


class RequestLog:
    """Takes requests from the event loop, and writes them by a thread of its own.

    `offer` never waits. What cannot be written is counted, and serving goes on.
    """

    def __init__(
        self, folder: Path, predictor: Predictor, sample: float, figures: ServingFigures,
        rotation: Rotation | None = None,
    ) -> None:  # fmt: skip
        """Start the thread; it begins with what earlier processes have left. Raises UserError for a model's fields."""
        self._folder, self._figures, self._rotation = folder, figures, rotation or Rotation()
        self._version = str(predictor.description.step)
        self._columns = SampleColumns(predictor.fields)
        self._schema = _schema(self._columns, [output.name for output in predictor.description.outputs])
        self._sample, self._draw = sample, random.Random()
        self._waiting: queue.SimpleQueue[_Answered] = queue.SimpleQueue()
        self._held, self._held_bytes, self._lock = 0, 0, threading.Lock()
        self._wake, self._ending, self._gives_up = threading.Event(), threading.Event(), threading.Event()
        self._pending: PendingFile | None = None
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
        """Write what waits, and publish it; gives up after `limit_s` seconds."""
        self._ending.set()
        self._wake.set()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._gives_up.set()
            self._figures.not_logged.labels("late").inc(self._held)
            log.warning(
                "the request log was not written within %g s after the end, and lacks %s; what is in its hidden "
                "files is published at the next start", limit_s, count(self._held, "request"),
            )  # fmt: skip

    def _run(self) -> None:
        is_first, is_last = True, False
        while not is_last and not self._gives_up.is_set():
            try:
                if is_first:
                    is_first = False
                    self._publish_abandoned()
                self._wake.wait(self._rotation.flush_s)
                self._wake.clear()
                is_last = self._ending.is_set()
                self._add(self._taken())
                self._publish(is_last)
            except Exception:
                log.exception("requests could not be logged")

    def _taken(self) -> list[_Answered]:
        """Return the requests that wait."""
        found = []
        while True:
            try:
                found.append(self._waiting.get_nowait())
            except queue.Empty:
                return found

    def _add(self, requests: list[_Answered]) -> None:
        for group in _groups(requests):
            if self._gives_up.is_set():
                return
            try:
                batches = [batch for batch in map(self._batch, group) if batch is not None]
                if batches:
                    self._append(batches)
            finally:
                with self._lock:
                    self._held -= len(group)
                    self._held_bytes -= sum(each.nbytes for each in group)

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

    def _append(self, batches: list[Any]) -> None:
        """Add requests to the pending file, and count them."""
        try:
            if self._pending is None:
                self._pending = PendingFile(self._folder, self._schema)
            self._pending.append(batches[0] if len(batches) == 1 else pa.concat_batches(batches))
        except OSError as error:
            self._figures.not_logged.labels("disk").inc(len(batches))
            if isinstance(error, FileNotFoundError) and self._pending is not None:
                self._pending.close()
                self._pending = None
            self._fail(error)
            return
        except Exception:
            log.exception("%s could not be logged", count(len(batches), "request"))
            self._figures.not_logged.labels("failed").inc(len(batches))
            return
        self._figures.logged.inc(len(batches))
        if self._is_failing:
            self._is_failing = False
            log.warning("requests are logged again in %s", self._folder)

    def _publish(self, is_last: bool) -> None:
        """Publish the pending file if it is complete, and with it what could not be published before."""
        pending, rules = self._pending, self._rotation
        if pending is None:
            return
        age = time.monotonic() - pending.begin
        if not (is_last or age >= rules.seconds or pending.rows >= rules.rows or pending.size >= rules.nbytes):
            return
        self._pending = None
        try:
            pending.publish()
        except (OSError, pa.ArrowException) as error:
            self._fail(error)
        else:
            self._publish_abandoned()

    def _publish_abandoned(self) -> None:
        for each in publish_abandoned(self._folder):
            if each.error is not None:
                self._fail(each.error)
                continue
            if each.rows:
                rows = count(each.rows, "row")
                log.warning("%s that a killed process had left are published in %s", rows, self._folder)
            if each.lost:
                log.warning(
                    "%s of %s, which a killed process had left, were not whole, and are lost",
                    count(each.lost, "byte"), each.path,
                )  # fmt: skip

    def _fail(self, error: OSError | pa.ArrowException) -> None:
        """Say once that no requests can be written or published."""
        if not self._is_failing:
            self._is_failing = True
            is_disk = isinstance(error, OSError)
            sentence = disk_error(error, self._folder) if is_disk else f"a file cannot be made: {one_line(error)}"
            log.warning("%s; serving goes on, and requests that are not logged are counted", sentence)


def _schema(columns: SampleColumns, outputs: list[str]) -> Any:
    own = [*COLUMNS.items(), *((name, pa.float32()) for name in outputs)]
    if taken := [name for name, _ in own if name in columns.names]:
        raise UserError(f"the model reads a column {taken[0]}, which the request log needs itself; leave out --log")
    schema = columns.schema()
    return pa.schema([*COLUMNS.items(), *schema, *((name, pa.float32()) for name in outputs)])


def _groups(requests: list[_Answered]) -> Iterator[list[_Answered]]:
    """Yield requests in order, so many together as are of GROUP_BYTES, but one at least."""
    group: list[_Answered] = []
    size = 0
    for request in requests:
        if group and size + request.nbytes > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(request)
        size += request.nbytes
    if group:
        yield group


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

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
from persia_cli.errors import UserError, count
from persia_cli.server.figures import ServingFigures
from persia_cli.server.log_files import PendingFile, publish_abandoned
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.sample_columns import SampleColumns

log = logging.getLogger(__name__)

MOST_REQUESTS, MOST_BYTES = 4096, 2**25
"""Requests that wait to be written, and bytes of their bodies; one more is not logged."""
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
    """Of its body."""


class Rotation(NamedTuple):
    """When requests that wait are added to a file, and when it is complete."""

    flush_s: float = 1.0
    seconds: float = 60.0
    rows: int = 2**18


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
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def draw(self) -> bool:
        """Return whether the next request is in the sample; each is with the same probability, alone."""
        return self._draw.random() < self._sample

    def offer(self, name: str, columns: Mapping[str, Any], values: NDArray[np.float32], nbytes: int) -> None:
        """Have a request of so many bytes written later, with its predictions; counts it if too much is waiting."""
        request = _Answered(name, time.time(), columns, values, nbytes)
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
        try:
            batches = [batch for batch in map(self._batch, requests) if batch is not None]
            if batches:
                self._append(pa.concat_batches(batches), len(batches))
        finally:
            with self._lock:
                self._held -= len(requests)
                self._held_bytes -= sum(each.nbytes for each in requests)

    def _batch(self, request: _Answered) -> Any:
        """Return a request as a record batch; None, counted, if that cannot be."""
        try:
            return self._made(request)
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

    def _append(self, batch: Any, requests: int) -> None:
        try:
            if self._pending is None:
                self._pending = PendingFile(self._folder, self._schema)
            self._pending.append(batch)
        except OSError as error:
            self._figures.not_logged.labels("disk").inc(requests)
            if isinstance(error, FileNotFoundError) and self._pending is not None:
                self._pending.close()
                self._pending = None
            self._fail(error)
            return
        self._figures.logged.inc(requests)
        if self._is_failing:
            self._is_failing = False
            log.warning("requests are logged again in %s", self._folder)

    def _publish(self, is_last: bool) -> None:
        """Publish the pending file if it is complete, and with it what could not be published before."""
        pending, rules = self._pending, self._rotation
        if pending is None:
            return
        age = time.monotonic() - pending.begin
        if not (is_last or age >= rules.seconds or pending.rows >= rules.rows):
            return
        self._pending = None
        try:
            pending.publish()
        except OSError as error:
            self._fail(error)
        else:
            self._publish_abandoned()

    def _publish_abandoned(self) -> None:
        for each in publish_abandoned(self._folder):
            if each.error is not None:
                self._fail(each.error)
            elif each.rows:
                rows = count(each.rows, "row")
                log.warning("%s that a killed process had left are published in %s", rows, self._folder)

    def _fail(self, error: OSError) -> None:
        """Say once that the disk takes no requests."""
        if not self._is_failing:
            self._is_failing = True
            sentence = disk_error(error, self._folder)
            log.warning("%s; serving goes on, and requests that are not logged are counted", sentence)


def _schema(columns: SampleColumns, outputs: list[str]) -> Any:
    own = [*COLUMNS.items(), *((name, pa.float32()) for name in outputs)]
    if taken := [name for name, _ in own if name in columns.names]:
        raise UserError(f"the model reads a column {taken[0]}, which the request log needs itself; leave out --log")
    schema = columns.schema()
    return pa.schema([*COLUMNS.items(), *schema, *((name, pa.float32()) for name in outputs)])

"""Batches for a trainer in one process: samples, and row numbers of one table that joins all tables.

`python -m persia_cli.bench.portions CONFIG` reads a run's training batches and writes them to stdout. So a trainer in
one process gets the same help as a job: a second process that reads a few batches ahead.
"""

import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.record import read_run
from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.control.position import StepGrid
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.source import open_source, uses_stand_in
from persia_cli.engines.processes import python_module
from persia_cli.errors import RoleError, UserError
from persia_cli.plan.columns import dense_count, label_names

AHEAD = 11
"""Batches that wait for the trainer, as many as a loader may be ahead of an NN worker."""


@dataclass(frozen=True, slots=True)
class Portion:
    """A batch: dense float32 [n, D], labels float32 [n, T], weights float32 [n] or none, rows int64 [n, F]."""

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32]
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PortionShape:
    """Sizes of a portion's arrays, which determine its bytes in messages."""

    samples: int
    dense: int
    tasks: int
    weighted: bool
    sizes: tuple[int, ...]
    """Rows of each feature's table; none if they are unknown: then portions have no rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of a portion."""
        return self.samples * (4 * (self.dense + self.tasks + self.weighted) + 8 * len(self.sizes))

    def portion(self, batch: Batch) -> Portion:
        """Return a batch as a portion; ids beyond a table's size are folded into it. Raises UserError for lists."""
        weights = np.empty(0, np.float32) if batch.weights is None else batch.weights
        if not self.sizes:
            return Portion(batch.dense, batch.labels, weights, np.empty((batch.size, 0), np.int64))
        if batch.ids.size != batch.size * batch.features or not (np.diff(batch.offsets.astype(np.int64)) == 1).all():
            raise UserError("plain torch is compared on features of one id per sample; this data set has lists of ids")
        sizes = np.array(self.sizes, np.uint64).reshape(-1, 1)
        starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64).reshape(-1, 1)
        ids = (batch.ids.reshape(batch.features, -1) % sizes).astype(np.int64) + starts
        return Portion(batch.dense, batch.labels, weights, np.ascontiguousarray(ids.T))

    def split(self, block: NDArray[np.uint8]) -> Portion:
        """Return the portion stored in `block`, one array after the other."""
        n, features = self.samples, len(self.sizes)
        sizes = [8 * n * features, 4 * n * self.dense, 4 * n * self.tasks, 4 * n * self.weighted]
        rows, dense, labels, weights = np.split(block, np.cumsum(sizes)[:-1])
        return Portion(
            dense.view(np.float32).reshape(n, self.dense),
            labels.view(np.float32).reshape(n, self.tasks),
            weights.view(np.float32),
            rows.view(np.int64).reshape(n, features),
        )


def portion_shape(run: Run) -> PortionShape:
    """Return the shape of a run's batches."""
    dataset, generator = run.dataset, run.dataset.generator
    weighted = isinstance(dataset, ParquetDataset) and dataset.weight is not None and not uses_stand_in(dataset)
    sizes = generator.cardinalities if generator else ()
    return PortionShape(run.train.batch, dense_count(run), len(label_names(run)), weighted, sizes)


def table_sizes(run: Run) -> tuple[int, ...]:
    """Return the rows of each feature's table in torch; raises UserError if they are unknown."""
    generator = run.dataset.generator
    if generator is None:
        raise UserError(
            "plain torch needs the size of every table in advance: set dataset.generator.cardinalities, "
            "or compare with dense only"
        )
    return generator.cardinalities


class RingPortions:
    """The same first batches of the training split that a job's ring repeats, as portions in memory."""

    def __init__(self, run: Run, shape: PortionShape, batches: int) -> None:
        source = open_source(run.dataset, "train", run.seed, run.links)
        try:
            spans = [(slot * shape.samples, (slot + 1) * shape.samples) for slot in range(batches)]
            self._portions: Sequence[Portion] = [shape.portion(source.read(0, *span)) for span in spans]
        finally:
            source.close()
        self._next = 0

    def next_portion(self) -> Portion:
        """Return the next portion of the ring."""
        portion = self._portions[self._next % len(self._portions)]
        self._next += 1
        return portion


class Feeder:
    """The process, and the thread that reads its output; `close` ends both."""

    def __init__(self, config: Path, shape: PortionShape) -> None:
        self._shape = shape
        command = [*python_module("persia_cli.bench.portions"), str(config)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._portions: queue.Queue[Portion | None] = queue.Queue(AHEAD)
        self._closing = False
        self._thread = threading.Thread(target=self._read, name="feeder")
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def next_portion(self) -> Portion:
        """Return the next batch; raises RoleError if the process has ended."""
        portion = self._portions.get()
        if portion is None:
            raise RoleError(f"the process that reads batches for baselines ended with {self._process.wait()}")
        return portion

    def close(self) -> None:
        """End the process."""
        self._closing = True
        self._process.kill()
        while self._thread.is_alive():
            # The thread may be waiting for space in the queue.
            while not self._portions.empty():
                self._portions.get()
            self._thread.join(0.01)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        pipe = cast(BufferedReader, self._process.stdout)
        while not self._closing:
            block = np.empty(self._shape.nbytes, np.uint8)
            if pipe.readinto(block.data) < len(block):
                self._portions.put(None)
                return
            self._portions.put(self._shape.split(block))


def main(config: Path) -> None:
    """Write whole batches in the job's order, without end; the short batch at the end of an epoch is left out."""
    run = read_run(config)
    shape = portion_shape(run)
    source = open_source(run.dataset, "train", run.seed, run.links)
    grid = StepGrid(source.rows, shape.samples, 1)
    for step in count():
        epoch, start, stop = grid.locate(step)
        if stop - start == shape.samples:
            portion = shape.portion(source.read(epoch, start, stop))
            for array in (portion.rows, portion.dense, portion.labels, portion.weights):
                sys.stdout.buffer.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

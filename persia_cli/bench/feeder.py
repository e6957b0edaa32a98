"""A process that reads a run's training batches and writes them to stdout: `python -m persia_cli.bench.feeder CONFIG`.

A trainer in one process gets the same help as a job: a second process that reads a few batches ahead.
"""

import queue
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import numpy as np

from persia_cli.bench.portions import Portion, PortionShape, portion_shape
from persia_cli.config.record import read_run
from persia_cli.control.position import StepGrid
from persia_cli.data.source import open_source
from persia_cli.errors import RoleError
from persia_cli.launch.processes import python_module

AHEAD = 11
"""Batches that wait for the trainer, as many as a loader may be ahead of an NN worker."""


class Feeder:
    """The process, and the thread that reads its output; `close` ends both."""

    def __init__(self, config: Path, shape: PortionShape) -> None:
        self._shape = shape
        command = [*python_module("persia_cli.bench.feeder"), str(config)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0)
        self._portions: queue.Queue[Portion | None] = queue.Queue(AHEAD)
        self._closing = False
        self._thread = threading.Thread(target=self._read, name="feeder")
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def take(self) -> Portion:
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
            # The thread may be waiting for room in the queue.
            while not self._portions.empty():
                self._portions.get()
            self._thread.join(0.01)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        while not self._closing:
            block = np.empty(self._shape.nbytes, np.uint8)
            if not self._fill(block.data):
                self._portions.put(None)
                return
            self._portions.put(self._shape.split(block))

    def _fill(self, place: memoryview) -> bool:
        pipe = self._process.stdout
        assert pipe is not None
        while place:
            taken = pipe.readinto(place)  # type: ignore[attr-defined]
            if not taken:
                return False
            place = place[taken:]
        return True


def main(config: Path) -> None:
    """Write whole batches in the job's order, without end; the short batch at the end of an epoch is left out."""
    run = read_run(config)
    shape = portion_shape(run)
    source = open_source(run.dataset, "train", run.seed)
    grid = StepGrid(source.rows, shape.samples, 1)
    for step in count():
        epoch, start, stop = grid.locate(step)
        if stop - start == shape.samples:
            portion = shape.portion(source.read(epoch, start, stop))
            for array in (portion.rows, portion.dense, portion.labels, portion.weights):
                sys.stdout.buffer.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

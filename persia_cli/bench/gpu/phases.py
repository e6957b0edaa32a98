"""The time of each part of one rank's step on a device that finishes each part before the next begins."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

import numpy as np
import torch

from persia_cli.bench.portions import RingPortions, portion_shape
from persia_cli.config.schema import Run
from persia_cli.observe.trace import Trace
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.wire_rows import encode_rows
from persia_cli.train.dense_trainer import DenseTrainer
from persia_cli.train.device import device_of
from persia_cli.train.distributed import World
from persia_cli.train.inputs import GroupRows, Samples
from persia_cli.wire.parts import BatchId

WARM, STEPS, BATCHES = 5, 12, 2
NAMES = {"decode rows": "rows to the device", "dense step": "dense update"}
"""The names of a step's spans in the report."""


class WaitingTrace(Trace):
    """Adds up the time of spans, waiting for the device at their ends; time within a nested span counts for that."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def span(self, lane: str, name: str, what: BatchId | int) -> AbstractContextManager[None]:
        """Time the block."""
        return self._timed(name)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = self._now()
        self._inner.append(0.0)
        yield
        took = self._now() - begin
        self.seconds[name] += took - self._inner.pop()
        self._inner[-1] += took

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()


def phases(run: Run) -> dict[str, float]:
    """Return milliseconds per step of each of its parts, fed from memory with features of one id per sample."""
    device = device_of(run, 0)
    trace = WaitingTrace(device)
    rank = DenseTrainer(run, World(device=device), trace)
    (group,) = embedding_layout(run).feature_groups
    ring, rng = RingPortions(run, portion_shape(run), BATCHES), np.random.default_rng(0)
    batches = []
    for _ in range(BATCHES):
        portion = ring.take()
        rows, inverse = np.unique(portion.rows.T.reshape(-1), return_inverse=True)
        values = rng.uniform(-0.01, 0.01, (len(rows), group.dim)).astype(np.float32)
        samples = Samples(portion.dense, portion.labels, None, float(len(portion.labels)))
        batches.append((samples, [GroupRows([encode_rows(values, group.wire)], inverse.astype(np.int32), None)]))
    for step in range(WARM + STEPS):
        if step == WARM:
            trace.seconds.clear()
        rank.train(step, *batches[step % BATCHES], send=lambda gradients: None)
    return {NAMES.get(name, name): seconds / STEPS * 1e3 for name, seconds in trace.seconds.items()}

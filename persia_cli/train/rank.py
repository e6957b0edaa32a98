"""One rank's dense network and everything about it: train, evaluate, save, load, and the figures of an interval."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import Run
from persia_cli.model.build import build_model
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.observe.trace import Trace
from persia_cli.plan.columns import dense_count, label_names
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.manifest import SavedFile
from persia_cli.train.dense_state import load_dense, save_dense
from persia_cli.train.distributed import World
from persia_cli.train.inputs import GroupRows, Samples, group_shapes, input_shape
from persia_cli.train.optimizer import LearningRate, dense_optimizer
from persia_cli.train.runtime import prepare_torch
from persia_cli.train.step import TRAINING, DenseStep, Scored


class Rank:
    """The dense side of one NN worker, built from a run; used by one thread."""

    def __init__(self, run: Run, world: World, trace: Trace | None = None) -> None:
        """Build the network and its optimizer; raises ConfigError if the run's model does not fit its data or world."""
        prepare_torch(run.train.threads)
        self._trace = trace or Trace()
        layout = embedding_layout(run)
        self.log_every_steps = run.train.log_every_steps
        self._tasks = len(label_names(run))
        dense = dense_count(run)
        self._module = build_model(run.model, input_shape(layout, dense, self._tasks), run.seed)
        self.parameters = sum(weight.numel() for weight in self._module.parameters())
        self._optimizer = dense_optimizer(run.optimizer.dense, self._module)
        self._rate = LearningRate(run.optimizer.dense, self._optimizer)
        self._step = DenseStep(self._module, self._optimizer, group_shapes(layout), world, dense, run.seed, self._trace)

    def train(
        self, step: int, samples: Samples, groups: list[GroupRows], send: Callable[[list[NDArray[np.float32]]], None]
    ) -> Scored:
        """Train one step; `send` gets the gradients of the rows from within backward, before the dense weights move."""
        result = self._step.train(step, samples, groups, send)
        with self._trace.span(TRAINING, "dense step", step):
            self._rate.set(step)
            self._step.update()
        return result

    def evaluate(self, step: int, samples: Samples, groups: list[GroupRows]) -> Scored:
        """Score one step's samples; nothing changes."""
        return self._step.evaluate(step, samples, groups)

    def interval(self) -> "Interval":
        """Begin the figures of an interval."""
        return Interval(self._tasks)

    def save(self, folder: Path) -> list[SavedFile]:
        """Write weights and optimizer state into a new folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return save_dense(folder, self._module, self._optimizer)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; raises CheckpointError if it is of another model."""
        load_dense(folder, self._module, self._optimizer)


class Interval:
    """The figures of one rank between two lines of metrics."""

    def __init__(self, tasks: int) -> None:
        self._scores = ScoreHistogram(tasks)
        self._samples = self._steps = 0
        self._staleness: Counter[int] = Counter()

    def add(self, samples: Samples, scored: Scored, staleness: int | None = None) -> None:
        """Take one step in, and in training how stale its rows were."""
        self._scores.add(scored.logits, samples.labels, samples.weights)
        self._samples += len(samples.labels)
        self._steps += 1
        if staleness is not None:
            self._staleness[staleness] += 1

    def encode(self) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """Return the figures for the wire: plain numbers, and the scores as positions and values."""
        body = {"samples": self._samples, "steps": self._steps, "staleness": dict(self._staleness)}
        bins, counts = self._scores.encode()
        return body, [np.ascontiguousarray(bins), np.ascontiguousarray(counts)]

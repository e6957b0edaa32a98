"""One rank's dense network and everything about it: train, evaluate, save, load, and the figures of an interval."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import BCE, Run
from persia_cli.kernels.memory import Empty
from persia_cli.model.build import build_model
from persia_cli.observe.grouped import GroupedScores
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.observe.trace import Trace
from persia_cli.plan.columns import dense_count, label_names
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.manifest import SavedFile
from persia_cli.train.compiling import compile_network
from persia_cli.train.dense_state import load_dense, save_dense
from persia_cli.train.distributed import World
from persia_cli.train.inputs import GroupRows, Samples, group_shapes, input_shape
from persia_cli.train.loss import Objective
from persia_cli.train.optimizer import LearningRate, dense_optimizer
from persia_cli.train.runtime import prepare_torch
from persia_cli.train.shared_weights import SharedWeights
from persia_cli.train.step import TRAINING, DenseStep, Scored, StepResult, StepSettings


class Rank:
    """The dense side of one NN worker, built from a run; used by one thread."""

    def __init__(self, run: Run, world: World, trace: Trace | None = None, empty: Empty = np.empty) -> None:
        """Build the network and its optimizer; raises ConfigError if the run's model does not fit its data or world.

        Gradients of rows are made by `empty` where they are sent as they are.
        """
        prepare_torch(run.train.threads)
        self._trace = trace or Trace()
        layout = embedding_layout(run)
        self.log_every_steps = run.train.log_every_steps
        self._tasks = len(label_names(run))
        dense = dense_count(run)
        self._objective = Objective([run.train.losses.get(name, BCE) for name in label_names(run)])
        self._module = build_model(run.model, input_shape(layout, dense, self._tasks), run.seed).to(world.device)
        if run.train.compile:
            compile_network(self._module)
        self.parameters = sum(weight.numel() for weight in self._module.parameters())
        self._optimizer = dense_optimizer(run.optimizer.dense, self._module)
        self._feature_groups = len(layout.feature_groups)
        self._shared = None
        if layout.dense_group is not None:
            decay = getattr(run.optimizer.dense, "weight_decay", 0.0)
            self._shared = SharedWeights(self._module, run.cluster.nn_workers, decay)
        self.dense_rows = self._shared.rows if self._shared else 0
        self._rate = LearningRate(run.optimizer.dense, self._optimizer)
        settings = StepSettings(self._objective, run.train.precision, run.optimizer.dense.clip_norm, empty=empty)
        self._step = DenseStep(
            self._module, self._optimizer, group_shapes(layout), world, dense, run.seed, settings, self._trace
        )

    def train(
        self, step: int, samples: Samples, groups: list[GroupRows], send: Callable[[list[NDArray[np.float32]]], None]
    ) -> Scored:
        """Train one step; `send` gets the gradients of the rows from within backward, before the dense weights move.

        Where embedding servers keep the dense weights, these are the last of `groups` and of the gradients.
        """
        if self._shared is not None:
            self._shared.take(groups[-1])
            gradients: list[NDArray[np.float32]] = []
            result = self._step.train(step, samples, groups[: self._feature_groups], gradients.extend)
            send([*gradients, self._shared.gradients()])
            return result
        result = self._step.train(step, samples, groups, send)
        with self._trace.span(TRAINING, "dense step", step):
            self._rate.set(step)
            self._step.update()
        return result

    def evaluate(self, step: int, samples: Samples, groups: list[GroupRows]) -> Scored:
        """Score one step's samples; nothing changes."""
        return self._step.evaluate(step, samples, groups[: self._feature_groups])

    def refresh(self, weights: GroupRows) -> None:
        """Set the dense weights, which embedding servers keep, to what they are there."""
        assert self._shared is not None
        self._shared.take(weights)

    def interval(self) -> "Interval":
        """Begin the figures of an interval."""
        return Interval(self._objective.shares)

    def save(self, folder: Path) -> list[SavedFile]:
        """Write weights and optimizer state into a new folder."""
        folder.mkdir(parents=True, exist_ok=True)
        scale = self._step.loss_scale
        files = save_dense(folder, self._module, self._optimizer, scale.state() if scale else None)
        return [*files, self._shared.save(folder)] if self._shared else files

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; raises CheckpointError if it is of another model."""
        saved = load_dense(folder, self._module, self._optimizer)
        if self._step.loss_scale and saved:
            self._step.loss_scale.load(saved)
        if self._shared is not None:
            self._shared.load(folder)


class Interval:
    """The figures of one rank between two lines of metrics."""

    def __init__(self, shares: Sequence[float]) -> None:
        """Begin with nothing; `shares` are those of the tasks in the loss."""
        self._scores, self._grouped = ScoreHistogram(len(shares)), GroupedScores(len(shares))
        self._shares = np.array(shares)
        self._samples = self._steps = 0
        self._staleness: Counter[int] = Counter()
        self._loss_sum = 0.0
        self._loss_scale: float | None = None
        self._steps_skipped = 0

    def add(self, samples: Samples, scored: Scored, staleness: int | None = None) -> None:
        """Take one step in, and in training how stale its rows were."""
        self._scores.add(scored.logits, samples.labels, samples.weights)
        if samples.groups is not None:
            self._grouped.add(samples.groups, scored.logits, samples.labels, samples.weights)
        self._loss_sum += float(scored.loss_sum @ self._shares)
        if isinstance(scored, StepResult):
            self._loss_scale, self._steps_skipped = scored.loss_scale, scored.steps_skipped
        self._samples += len(samples.labels)
        self._steps += 1
        if staleness is not None:
            self._staleness[staleness] += 1

    def encode(self) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """Return the figures for the wire: plain numbers; the scores as positions and values, and those in groups."""
        body = {
            "loss_sum": self._loss_sum,
            "loss_scale": self._loss_scale,
            "steps_skipped": self._steps_skipped,
            "samples": self._samples,
            "steps": self._steps,
            "staleness": dict(self._staleness),
        }
        arrays = [*self._scores.encode(), *self._grouped.encode()]
        return body, [np.ascontiguousarray(array) for array in arrays]

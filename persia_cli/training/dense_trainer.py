"""The dense network of one rank: training, evaluation, saving, loading."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from persia_cli.config.schema import Run
from persia_cli.control.calibration import Calibration
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.model.build import build_model
from persia_cli.model.calibration import Factors, factors_of
from persia_cli.observe.trace import Trace
from persia_cli.plan.columns import dense_count, input_shape, label_names
from persia_cli.plan.embedding import embedding_layout, step_layout
from persia_cli.plan.pinning import require_threads
from persia_cli.plan.warm_start import DenseFit
from persia_cli.storage.locations import Location
from persia_cli.store.wire_rows import encode_rows
from persia_cli.training.compiling import compile_network
from persia_cli.training.dense_state import (
    TensorFile,
    dense_state,
    load_dense,
    load_fitting,
    load_weights,
)
from persia_cli.training.device import prepare_torch
from persia_cli.training.distributed import World, refuse_local_statistics
from persia_cli.training.graphs import training as graphs
from persia_cli.training.graphs.device_queue import DeviceQueue
from persia_cli.training.graphs.training import Done, Encoded, GraphedTraining, Send
from persia_cli.training.inputs import Samples, StepParts, group_shapes
from persia_cli.training.loss import Objective
from persia_cli.training.optimizer import LearningRate, dense_optimizer, penalties
from persia_cli.training.shared_weights import SharedWeights
from persia_cli.training.step import TRAINING, DenseStep, Scored, StepSettings
from persia_cli.wire.messages import GroupRows


class DenseTrainer:
    """The dense side of one NN worker, built from a run; used by one thread."""

    def __init__(
        self,
        run: Run,
        world: World,
        trace: Trace | None = None,
        empty: Empty = np.empty,
        trains: bool = True,
        fail: Callable[[BaseException], None] = lambda error: None,
        queue: DeviceQueue | None = None,
    ) -> None:
        """Build the network; raise ConfigError if the run's model does not fit its data or world.

        `empty` allocates gradients of rows that are sent without conversion. The optimizer is built only for a rank
        that `trains`. `fail` is called with the error of a step that another thread finishes. `queue`
        is by default that of its GPU, if its steps can be graphs.
        """
        # torch's optimizers import its compiler, which takes longer than scoring thousands of samples.
        require_threads(run, os.sched_getaffinity(0))
        prepare_torch(run.train.threads, run.train.precision)
        self._trace = trace or Trace()
        layout = embedding_layout(run)
        self.log_every_steps = run.train.log_every_steps
        self._tasks = len(label_names(run))
        dense = dense_count(run)
        objective = Objective(run.losses)
        self.links = tuple(run.links.values())
        self.network: nn.Module = build_model(run.model, input_shape(run, layout), run.seed).to(world.device)
        if run.train.compile:
            compile_network(self.network)
        self.parameters = sum(weight.numel() for weight in self.network.parameters())
        self._optimizer = dense_optimizer(run.optimizer.dense, self.network) if trains else None
        self._feature_groups = len(layout.feature_groups)
        self._factors: Factors | None = None
        self._shared = None
        if layout.dense_group is not None:
            l2 = penalties(run.optimizer.dense, self.network)
            self._shared = SharedWeights(self.network, run.cluster.nn_workers, l2)
        self.dense_rows = self._shared.rows if self._shared else 0
        self.reductions = 0
        """Number of reductions of the learning rate by evaluations before the next steps."""
        self._rate = LearningRate(run.optimizer.dense, self._optimizer) if self._optimizer else None
        size = run.train.batch // (run.cluster.nn_workers * run.train.accumulate)
        parts = StepParts(run.train.accumulate, size)
        if queue is None and trains:
            queue = graphs.queue_for(run, world, objective, self._trace.is_wanted)
        clip_norm, by_kernels = run.optimizer.dense.clip_norm, queue is None
        settings = StepSettings(objective, run.train.precision, clip_norm, by_kernels, empty, parts)
        shapes = group_shapes(step_layout(run))
        self._step = DenseStep(self.network, self._optimizer, shapes, world, dense, run.seed, settings, self._trace)
        self._wires, self._empty = [group.wire for group in layout.groups], empty
        self._graphs = None
        if queue is not None:
            self._graphs = GraphedTraining(
                self._step,
                shapes,
                queue,
                size=run.train.batch,
                empty=empty,
                trace=self._trace,
                required=run.train.graphs == "on",
                fail=fail,
            )

    def train(self, step: int, samples: Samples, groups: list[GroupRows], send: Send, done: Done) -> None:
        """Train one step, or enqueue it on a GPU; then another thread calls `send` and `done`, in the order of steps.

        `send` gets the encoded gradients of the rows, during backward and before dense weights change, and `done` the
        scores. If embedding servers store the dense weights, these are the last of `groups` and of the gradients.
        """
        if self._shared is not None:
            self._shared.set_from_rows(groups[-1])
            gradients: list[NDArray[np.float32]] = []
            result = self._step.train(step, samples, groups[: self._feature_groups], gradients.extend)
            send(self._encoded(step, [*gradients, self._shared.gradients()]))
            done(result)
            return
        assert self._rate is not None
        before = None
        if self._graphs is not None:
            if self._graphs.train(step, samples, groups, self._rate.at(step, self.reductions), send, done):
                return
            before = self._graphs.before(samples)
        result = self._step.train(step, samples, groups, lambda gradients: send(self._encoded(step, gradients)))
        with self._trace.span(TRAINING, "dense step", step):
            self._rate.set(step, self.reductions)
            self._step.update()
        if self._graphs is not None and before is not None:
            self._graphs.verify_against_eager(step, samples, groups, before, result)
        done(result)

    def _encoded(self, step: int, gradients: list[NDArray[np.float32]]) -> Encoded:
        with self._trace.span(TRAINING, "encode gradients", step):
            return [encode_rows(rows, wire, self._empty) for rows, wire in zip(gradients, self._wires, strict=True)]

    def drain(self) -> None:
        """Wait until the last step has ended; raises the error of one that failed."""
        if self._graphs is not None:
            self._graphs.drain()

    def close(self) -> None:
        """End the thread of steps in flight."""
        if self._graphs is not None:
            self._graphs.close()

    def calibrate(self, calibration: Sequence[Calibration]) -> None:
        """Correct the logits of all evaluations from now on; the loss stays that of the network's own."""
        self._factors = factors_of(calibration, self._tasks)

    def evaluate(self, step: int, samples: Samples, groups: list[GroupRows]) -> Scored:
        """Score one step's samples; nothing changes."""
        scored = self._step.evaluate(step, samples, groups[: self._feature_groups])
        if self._factors is None:
            return scored
        slopes, shifts = self._factors
        return replace(scored, logits=scored.logits * slopes + shifts)

    def refresh(self, weights: GroupRows) -> None:
        """Set the dense weights to those that the embedding servers store."""
        assert self._shared is not None
        self._shared.set_from_rows(weights)

    def rehearse(self) -> None:
        """Run forward and backward on no samples; raises ConfigError if several ranks could not train the network."""
        refuse_local_statistics(self.network)
        self._step.rehearse()

    def files(self) -> list[TensorFile]:
        """Return copies of all state of training, for a checkpoint."""
        assert self._optimizer is not None
        files = dense_state(self.network, self._optimizer)
        files += [self._shared.initial_file()] if self._shared else []
        return [file.copied() for file in files]

    def load(self, folder: Location) -> None:
        """Read the files of `files`, the weights alone if the rank does not train; raise CheckpointError.

        The checkpoint must be of the same model, and for training of the same kind of optimizer.
        """
        if self._optimizer is None:
            load_weights(folder, self.network)
        else:
            load_dense(folder, self.network, self._optimizer)
        if self._shared is not None:
            self._shared.load(folder)

    def warm_start(self, folder: Location, states: bool) -> DenseFit:
        """Begin with the weights that fit of those that `save` wrote, with `states` also those of their optimizer.

        If servers store the dense weights, their optimizer begins anew. Raise CheckpointError for damaged files.
        """
        assert self._optimizer is not None
        fit = load_fitting(folder, self.network, self._optimizer, states and self._shared is None)
        if self._shared is not None:
            self._shared.make_present_weights_initial()
        return fit

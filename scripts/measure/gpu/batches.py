"""Generated features and batches to train a network without servers: rows are one array, moved by their gradients."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from persia_cli.config.schema import BCE, DenseOptimizer, DenseSgd, Esmm, Mmoe, Model, Ple
from persia_cli.config.schema.sequences import Attending, Sequential
from persia_cli.model.build import build_model
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.store.wire_rows import encode_rows
from persia_cli.training.device import Precision
from persia_cli.training.distributed import World
from persia_cli.training.inputs import GroupShape, Samples
from persia_cli.training.loss import Objective
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.training.step import DenseStep, StepSettings
from persia_cli.wire.messages import GroupRows

DENSE, FEATURES, IDS, LENGTH = 13, 8, 400, 6
"""Number of dense features, of sparse features, of the ids of all of them, and length of the longest sequence."""
LR, MOVED = 0.05, 0.002
"""Learning rate of the dense weights, and the largest change of a row in a step."""
SGD = DenseSgd(kind="sgd", lr=LR)
PROBES = 5
HISTORY = "history"
"""The sequence that networks with attention read; its target is the feature f0."""

Floats = NDArray[np.float32]


def shape_for(model: Model) -> InputShape:
    """Return features that suit the network."""
    features = tuple(FeatureShape(f"f{number}", model.dim, "sum", table=0) for number in range(FEATURES))
    history = FeatureShape(HISTORY, model.dim, "none", LENGTH, table=0)
    if isinstance(model, Sequential):
        return InputShape(0, (features[0], history), 1)
    if isinstance(model, Attending):
        features += (history,)
    return InputShape(DENSE, features, 2 if isinstance(model, Mmoe | Ple | Esmm) else 1)


def random_ids(shape: InputShape, size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], GroupRows]:
    """Return the unique ids of a batch, and each bag's indices into them; one id per sample, several for sequences."""
    lengths = [
        rng.integers(0, LENGTH + 1, size) if each.pooling == "none" else np.ones(size, np.int64)
        for each in shape.features
    ]
    offsets = np.concatenate([[0], *lengths]).cumsum().astype(np.uint32)
    ids, inverse = np.unique(rng.integers(0, IDS, int(offsets[-1])), return_inverse=True)
    return ids, GroupRows([], inverse.astype(np.int32), offsets if shape.sequences else None)


def random_samples(shape: InputShape, size: int, rng: np.random.Generator) -> Samples:
    """Return dense features and labels."""
    labels = rng.integers(0, 2, (size, shape.tasks)).astype(np.float32)
    return Samples(rng.standard_normal((size, shape.dense), np.float32), labels, None, [float(size)] * labels.shape[1])


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The outputs of a network before training, and the results of some steps of training."""

    probes: list[Floats]
    """Gradients of the rows of some batches, all before the first update."""
    logits: list[Floats]
    rows: Floats
    weights: Floats
    """All rows and all dense weights at the end."""


def without_kinks(module: nn.Module) -> None:
    """Put SiLU in the place of each ReLU of a network."""
    for inner in list(module.modules()):
        for name, child in inner.named_children():
            if type(child) is nn.ReLU:
                setattr(inner, name, nn.SiLU())


class Trainer:
    """A network and its rows, trained in synchronous steps; everything is determined by the model and the seed."""

    def __init__(
        self,
        model: Model,
        world: World,
        precision: Precision = "float32",
        by_kernels: bool = False,
        compiled: bool = False,
        dense: DenseOptimizer = SGD,
        seed: int = 1,
        smooth: bool = False,
    ) -> None:
        """Build the network on the device of `world`; torch pools rows, or with `by_kernels` our kernels on the CPU.

        With `smooth`, SiLU is in the place of each ReLU. At a ReLU's kink rounding becomes visible: it carries an input
        over 0, a gradient jumps, and all later numbers differ, on one and the same device too.
        """
        self.shape = shape_for(model)
        self.module = build_model(model, self.shape, 0).to(world.device)
        if smooth:
            without_kinks(self.module)
        if compiled:
            self.module.compile()
        group = GroupShape(model.dim, self.shape.features)
        settings = StepSettings(Objective([BCE] * self.shape.tasks), precision, by_kernels=by_kernels)
        optimizer = dense_optimizer(dense, self.module)
        self.step = DenseStep(self.module, optimizer, [group], world, self.shape.dense, 0, settings)
        self._rng = np.random.default_rng(seed)
        self.rows = self._rng.standard_normal((IDS, model.dim), np.float32) * np.float32(0.1)

    def batch(self, size: int) -> tuple[Samples, NDArray[np.int64], list[GroupRows]]:
        """Return the next samples, their unique ids, and the rows of these as two servers send them."""
        samples = random_samples(self.shape, size, self._rng)
        ids, group = random_ids(self.shape, size, self._rng)
        blocks = [encode_rows(part, "float32") for part in np.array_split(self.rows[ids], 2)]
        return samples, ids, [GroupRows(blocks, group.inverse, group.offsets)]

    def move(self, ids: NDArray[np.int64], gradient: Floats) -> None:
        """Move rows against their gradients."""
        greatest = float(np.abs(gradient).max(initial=1e-30))
        self.rows[ids] -= np.float32(MOVED / greatest) * gradient

    def train(self, number: int, size: int, moves: bool = True) -> tuple[Floats, Floats]:
        """Run the next step, and update if `moves`; return its logits and the gradients of its rows."""
        samples, ids, groups = self.batch(size)
        result = self.step.train(number, samples, groups)
        if moves:
            self.step.update()
            self.move(ids, result.gradients[0])
        return result.logits, result.gradients[0]

    def trajectory(self, steps: int, size: int) -> Trajectory:
        """Run some batches without updates, then train some steps."""
        probes = [self.train(number, size, moves=False)[1] for number in range(PROBES)]
        logits = [self.train(number, size)[0] for number in range(steps)]
        weights = [weight.detach().float().cpu().numpy().reshape(-1) for weight in self.module.parameters()]
        return Trajectory(probes, logits, self.rows, np.concatenate(weights))

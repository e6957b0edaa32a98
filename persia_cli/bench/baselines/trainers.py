"""Trainers in one process: plain torch with one big table, and the dense network alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.bench.baselines.parts import unchecked
from persia_cli.bench.machine import available_bytes
from persia_cli.bench.portions import Portion
from persia_cli.config.schema import Adagrad, Adam, Run, Sgd
from persia_cli.data.read.masked_labels import weight_totals, without_unknown
from persia_cli.errors import UserError
from persia_cli.kernels.toolchain.memory import retain_freed_memory
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.outputs import split_output
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout
from persia_cli.training.device import Copier, autocast, device_of, prepare_torch
from persia_cli.training.loss import Objective, with_auxiliary
from persia_cli.training.optimizer import LearningRate, dense_optimizer

SPARE = 0.85
"""Fraction of the available memory that torch's table may use."""
READY = 8
"""Blocks of embeddings that the dense network reads in turn: more than caches hold."""


class DenseBaseline:
    """A run's dense network with its loss and optimizer, fed embeddings from memory; an upper bound of the speed.

    Gradients of the embeddings are computed and dropped.
    """

    name = "dense"

    def __init__(self, run: Run) -> None:
        """Build the network from the run's seed; raises UserError unless each feature has one pooled row of one dim."""
        if run.optimizer.dense.clip_norm is not None:
            raise UserError("baselines train without optimizer.dense.clip_norm; leave it out")
        if run.train.accumulate > 1:
            raise UserError("baselines compute each step at once; leave out train.accumulate")
        self._threads, self._precision = run.train.threads, run.train.precision
        self.device = device_of(run, 0)
        self._copier = Copier(self.device)
        self._objective = Objective(run.losses)
        self.prepare()
        retain_freed_memory()
        layout = embedding_layout(run)
        shape = input_shape(run, layout)
        if len(layout.feature_groups) != 1 or shape.sequences:
            raise UserError("baselines are compared on features that are all pooled and of one dim")
        self._names = [feature.name for feature in shape.pooled]
        self._dim, self._bound = layout.feature_groups[0].dim, run.embedding.init_bound
        self._module = build_model(run.model, shape, run.seed).to(self.device).train()
        self._dense = dense_optimizer(run.optimizer.dense, self._module)
        self._rate = LearningRate(run.optimizer.dense, self._dense)
        self._step = 0
        size = (run.train.batch, len(self._names), self._dim)
        self._ready = [self._uniform(size, run.seed + number) for number in range(READY)]

    def prepare(self) -> None:
        """Set torch up as an NN worker does: same threads, reproducible operations."""
        prepare_torch(self._threads, self._precision)

    @property
    def gpu(self) -> str | None:
        """The driver's name of the GPU that it trains on; None on the CPU."""
        return None if self.device.type == "cpu" else f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"

    def _uniform(self, size: tuple[int, ...], seed: int) -> torch.Tensor:
        """Return values like those of new rows, on the device."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.empty(size, device=self.device).uniform_(-self._bound, self._bound, generator=generator)

    def _there(self, array: NDArray[np.generic]) -> torch.Tensor:
        """Return an array on the device, copied as an NN worker does; on the CPU without a copy."""
        return torch.from_numpy(array) if self.device.type == "cpu" else self._copier.copy(array)

    def embeddings(self, portion: Portion) -> torch.Tensor:
        """Return float32 [n, F, dim] that requires a gradient."""
        return self._ready[self._step % READY].detach().requires_grad_()

    def update_rows(self) -> None:
        """Do nothing: there are no rows."""

    def train(self, portion: Portion) -> float:
        """Train one batch and return its loss."""
        self._dense.zero_grad()
        own = portion.weights if portion.weights.size else None
        known, known_weights = without_unknown(portion.labels, own)
        dense, labels = self._there(portion.dense), self._there(known)
        weights = None if known_weights is None else self._there(known_weights)
        self._copier.join()
        with autocast(self._precision, self.device):
            output = self._module(ModelBatch(dense, [self.embeddings(portion)], [self._names], {}))
        logits, auxiliary = split_output(output)
        weighted = with_auxiliary(self._objective.weighted(logits.float(), labels, weights), auxiliary, weights)
        loss = self._objective.part(weighted, weight_totals(portion.labels, own).tolist())
        loss.backward()  # type: ignore[no-untyped-call]
        self._rate.set(self._step)
        self._dense.step()
        self.update_rows()
        self._step += 1
        return loss.item()


class TorchBaseline(DenseBaseline):
    """All of the model in torch: the tables joined in one sparse `EmbeddingBag`, and torch's own optimizers."""

    name = "torch"

    def __init__(self, run: Run, sizes: tuple[int, ...]) -> None:
        """Build the table; raises UserError if torch lacks the rows' optimizer, or the machine the memory."""
        super().__init__(run)
        self._ready = []
        self._features = len(sizes)
        states = _states(run)
        rows = sum(sizes)
        needed = rows * self._dim * 4 * (1 + states)
        free = available_bytes() if self.device.type == "cpu" else torch.cuda.mem_get_info(self.device)[0]
        if needed > SPARE * free:
            raise UserError(
                f"plain torch needs {needed / 2**30:.1f} GiB for {rows:,} rows and their optimizer, and "
                f"{free / 2**30:.1f} GiB of memory are free; use smaller tables or --compare dense"
            )
        unchecked()
        weights = self._uniform((rows, self._dim), run.seed)
        self._bag = torch.nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="sum", sparse=True)
        self._rows = _row_optimizer(run, self._bag.weight)
        self._offsets = torch.arange(run.train.batch * self._features, device=self.device)

    def prepare(self) -> None:
        """Set the number of threads; leave torch's other settings at their defaults."""
        torch.set_num_threads(self._threads)
        torch.set_deterministic_debug_mode("default")

    def embeddings(self, portion: Portion) -> torch.Tensor:
        """Look up the rows of a batch."""
        self._rows.zero_grad(set_to_none=True)
        ids = self._there(portion.rows.reshape(-1))
        self._copier.join()
        pooled: torch.Tensor = self._bag(ids, self._offsets[: len(ids)])
        return pooled.view(-1, self._features, self._dim)

    def update_rows(self) -> None:
        """Take a step with the sparse gradient."""
        self._rows.step()

    def row(self, number: int) -> NDArray[np.float32]:
        """Return a row, float32 [dim]."""
        values: NDArray[np.float32] = self._bag.weight[number].detach().cpu().numpy()
        return values


def _states(run: Run) -> int:
    """Return the optimizer's state values per value of a row; raises UserError if torch has no such optimizer."""
    match run.optimizer.embedding:
        case Sgd(l2=0.0, weight_decay=0.0):
            return 0
        case Adagrad(l2=0.0, weight_decay=0.0):
            return 1
        case Adam(l2=0.0, weight_decay=0.0):
            return 2
        case other:
            raise UserError(
                f"torch has no sparse optimizer such as this {other.kind}; compare with optimizer.embedding.kind="
                "adagrad, adam or sgd without l2 and weight_decay, or with dense only"
            )


def _row_optimizer(run: Run, weight: torch.Tensor) -> torch.optim.Optimizer:
    match run.optimizer.embedding:
        case Sgd() as sgd:
            return torch.optim.SGD([weight], lr=sgd.rate)
        case Adagrad() as adagrad:
            start = adagrad.initial_accumulator_value
            return torch.optim.Adagrad([weight], lr=adagrad.rate, eps=adagrad.eps, initial_accumulator_value=start)
        case Adam() as adam:
            return torch.optim.SparseAdam([weight], lr=adam.rate, betas=(adam.beta1, adam.beta2), eps=adam.eps)
        case _:
            raise AssertionError("refused before")


@contextmanager
def settings_kept() -> Iterator[None]:
    """Restore torch's settings of this process at the end."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)

"""Trainers in one process, for comparison: plain torch with one big table, and the dense network alone.

On a GPU both run as graphs, like an NN worker's steps: neither side enqueues single operations from Python.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.bench.machine import available_bytes
from persia_cli.bench.portions import Portion, table_sizes
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
from persia_cli.training.graphs.blocks import BlockLayout, Field
from persia_cli.training.graphs.device_queue import CudaQueue, DeviceQueue, copies_of
from persia_cli.training.graphs.step import SLOTS, CapturedGraph, SlotViews
from persia_cli.training.graphs.update import NUMBERS, GraphUpdate
from persia_cli.training.loss import Objective, with_auxiliary
from persia_cli.training.optimizer import LearningRate, dense_optimizer

SPARE = 0.85
"""Fraction of the available memory that torch's table may use."""
BLOCKS = 8
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
        self._embeddings = [self._uniform(size, run.seed + number) for number in range(BLOCKS)]

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

    def _on_device(self, array: NDArray[np.generic]) -> torch.Tensor:
        """Return an array on the device, copied as an NN worker does; on the CPU without a copy."""
        return torch.from_numpy(array) if self.device.type == "cpu" else self._copier.copy(array)

    def close(self) -> None:
        """Release what outlives the trainer: nothing."""

    def embeddings(self, portion: Portion) -> torch.Tensor:
        """Return float32 [n, F, dim] that requires a gradient."""
        return self._embeddings[self._step % BLOCKS].detach().requires_grad_()

    def update_rows(self) -> None:
        """Do nothing: there are no rows."""

    def train(self, portion: Portion) -> float:
        """Train one batch and return its loss."""
        self._dense.zero_grad()
        sample_weights = portion.weights if portion.weights.size else None
        known, known_weights = without_unknown(portion.labels, sample_weights)
        dense, labels = self._on_device(portion.dense), self._on_device(known)
        weights = None if known_weights is None else self._on_device(known_weights)
        self._copier.join()
        with autocast(self._precision, self.device):
            output = self._module(ModelBatch(dense, [self.embeddings(portion)], [self._names], {}))
        logits, auxiliary = split_output(output)
        weighted = with_auxiliary(self._objective.weighted(logits.float(), labels, weights), auxiliary, weights)
        loss = self._objective.part(weighted, weight_totals(portion.labels, sample_weights).tolist())
        loss.backward()  # type: ignore[no-untyped-call]
        self._rate.set(self._step)
        self._dense.step()
        self.update_rows()
        self._step += 1
        return loss.item()


class TorchBaseline(DenseBaseline):
    """All of the model in torch: the tables joined in one sparse `EmbeddingBag`, and torch's own optimizers."""

    name = "torch"

    def __init__(self, run: Run) -> None:
        """Build the table; raises UserError if torch lacks the rows' optimizer, or the machine the memory."""
        sizes = table_sizes(run)
        super().__init__(run)
        self._embeddings = []
        self._features = len(sizes)
        states, optimizer = _row_optimizer(run)
        rows = sum(sizes)
        needed = rows * self._dim * 4 * (1 + states)
        free = available_bytes() if self.device.type == "cpu" else torch.cuda.mem_get_info(self.device)[0]
        if needed > SPARE * free:
            raise UserError(
                f"plain torch needs {needed / 2**30:.1f} GiB for {rows:,} rows and their optimizer, and "
                f"{free / 2**30:.1f} GiB of memory are free; use smaller tables or --compare dense"
            )
        # The checks are off by default, but torch warns until that is explicit.
        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
        weights = self._uniform((rows, self._dim), run.seed)
        self._bag = torch.nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="sum", sparse=True)
        self._rows = optimizer(self._bag.weight)
        self._offsets = torch.arange(run.train.batch * self._features, device=self.device)

    def prepare(self) -> None:
        """Set the number of threads; leave torch's other settings at their defaults."""
        torch.set_num_threads(self._threads)
        torch.set_deterministic_debug_mode("default")

    def embeddings(self, portion: Portion) -> torch.Tensor:
        """Look up the rows of a batch."""
        self._rows.zero_grad(set_to_none=True)
        ids = self._on_device(portion.rows.reshape(-1))
        self._copier.join()
        pooled: torch.Tensor = self._bag(ids, self._offsets[: len(ids)])
        return pooled.view(-1, self._features, self._dim)

    def update_rows(self) -> None:
        """Take a step with the sparse gradient."""
        self._rows.step()


def _row_optimizer(run: Run) -> tuple[int, Callable[[torch.Tensor], torch.optim.Optimizer]]:
    """Return the state values per value of a row, and the constructor; raises UserError if torch has no such one."""
    match run.optimizer.embedding:
        case Sgd(l2=0.0, weight_decay=0.0) as sgd:
            return 0, lambda weight: torch.optim.SGD([weight], lr=sgd.rate)
        case Adagrad(l2=0.0, weight_decay=0.0) as adagrad:
            start = adagrad.initial_accumulator_value
            return 1, lambda weight: torch.optim.Adagrad(
                [weight], lr=adagrad.rate, eps=adagrad.eps, initial_accumulator_value=start
            )
        case Adam(l2=0.0, weight_decay=0.0) as adam:
            betas = adam.beta1, adam.beta2
            return 2, lambda weight: torch.optim.SparseAdam([weight], lr=adam.rate, betas=betas, eps=adam.eps)
        case other:
            raise UserError(
                f"torch has no sparse optimizer such as this {other.kind}; compare with optimizer.embedding.kind="
                "adagrad, adam or sgd without l2 and weight_decay, or with dense only"
            )


class GraphedDense(DenseBaseline):
    """The dense network alone, fed embeddings from the memory of the GPU."""

    def __init__(self, run: Run, device: DeviceQueue | None = None) -> None:
        """Build the network; `device` is by default the queue of its GPU."""
        super().__init__(run)
        if device is None:
            device = CudaQueue(self.device)
        self._queue: DeviceQueue = device
        self._update = GraphUpdate(self._dense)
        self._captured: CapturedGraph | None = None
        self._running: deque[SlotViews] = deque()

    def train(self, portion: Portion) -> float:
        """Enqueue a batch, and return the loss of an earlier one; the first runs without a graph."""
        if self._captured is None:
            loss = super().train(portion)
            self._captured = self._capture(portion)
            return loss
        loss = self._wait_for_oldest() if len(self._running) == SLOTS else 0.0
        views, captured = self._captured.free.get(), self._captured
        numbers = np.array(self._update.numbers(self._rate.at(self._step)), np.float32)
        arrays = self._arrays(portion) | {"numbers": numbers}
        pairs = [(views.given[name], np.ascontiguousarray(array)) for name, array in arrays.items()]
        sizes = captured.inputs.nbytes, captured.outputs.nbytes
        self._queue.submit(views.slot, captured.graph, copies_of(pairs), *sizes, lambda: 0)
        self._running.append(views)
        self._step += 1
        return loss

    def finish(self) -> float:
        """Wait for all batches; return the loss of the last."""
        loss = 0.0
        while self._running:
            loss = self._wait_for_oldest()
        return loss

    def _wait_for_oldest(self) -> float:
        assert self._captured is not None
        views = self._running.popleft()
        self._queue.fetch(views.slot, copies_of([]))
        loss = float(views.result["loss"])
        self._captured.free.put(views)
        return loss

    def _arrays(self, portion: Portion) -> dict[str, NDArray[Any]]:
        sample_weights = portion.weights if portion.weights.size else None
        labels, weights = without_unknown(portion.labels, sample_weights)
        factors = self._objective.factors(weight_totals(portion.labels, sample_weights).tolist())
        arrays = {"factors": np.array(factors, np.float32), "dense": portion.dense, "labels": labels}
        return arrays if weights is None else arrays | {"weights": weights}

    def _capture(self, portion: Portion) -> CapturedGraph:
        arrays = self._arrays(portion) | {"numbers": np.zeros(NUMBERS, np.float32)}
        fields = [Field(name, array.dtype, array.shape) for name, array in arrays.items()]
        outputs = BlockLayout([Field("loss", np.dtype(np.float32), ())])
        captured = CapturedGraph(self._queue, BlockLayout(fields), outputs)
        state = [*self._module.parameters(), *self._module.buffers(), *self._update.state, *self._rows_state()]
        before = [tensor.detach().clone() for tensor in state]
        captured.graph = self._queue.capture(lambda: self._body(captured), lambda: self._body(captured))
        with torch.no_grad():
            for tensor, old in zip(state, before, strict=True):
                tensor.copy_(old)
        return captured

    def _body(self, captured: CapturedGraph) -> None:
        given = captured.given
        for weight in self._module.parameters():
            weight.grad = None
        vectors = self._vectors(given)
        with autocast(self._precision, self.device):
            output = self._module(ModelBatch(given["dense"], [vectors], [self._names], {}))
        logits, auxiliary = split_output(output)
        weights = given.get("weights")
        weighted = with_auxiliary(
            self._objective.weighted(logits.float(), given["labels"], weights), auxiliary, weights
        )
        loss = torch.dot(weighted.sum(0), given["factors"])
        loss.backward()  # type: ignore[no-untyped-call]
        captured.result["loss"].copy_(loss.detach())
        self._update.run(given["numbers"])
        self._move_rows(given, vectors)

    def _vectors(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return float32 [n, F, dim] that requires a gradient."""
        return self._embeddings[0].detach().requires_grad_()

    def _move_rows(self, given: dict[str, torch.Tensor], vectors: torch.Tensor) -> None:
        """Do nothing: there are no rows."""

    def _rows_state(self) -> list[torch.Tensor]:
        return []


@contextmanager
def settings_kept() -> Iterator[None]:
    """Restore torch's settings of this process at the end."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)


def choose_baselines(run: Run, names: Sequence[str]) -> list[type[DenseBaseline]]:
    """Return the baselines with these names; raises UserError for unknown ones."""
    on_gpu = device_of(run, 0).type == "cuda"
    kinds = {"torch": TorchBaseline, "dense": GraphedDense if on_gpu else DenseBaseline}
    for name in names:
        if name not in kinds:
            raise UserError(f"there is no baseline {name!r}; there are {' and '.join(kinds)}")
    return [kinds[name] for name in dict.fromkeys(names)]

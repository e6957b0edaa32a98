"""A run computed by plain torch in one process: an `nn.EmbeddingBag` per table, torch's optimizers, autograd alone.

Initial rows come from the naive twin of the kernels, the dense network and its initial weights from `build_model`.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.config.schema import (
    Adagrad,
    Adam,
    AdamW,
    DenseAdagrad,
    DenseAdam,
    DenseOptimizer,
    DenseSgd,
    Ftrl,
    Optimizer,
    Run,
    Sgd,
    SparseFeature,
)
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.source import open_source
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.outputs import split_output
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.plan.columns import dense_count, sparse_features, trains_on_queries
from persia_cli.store.layout import RowOptimizer, table_salt
from persia_cli.training.dense_state import load_dense
from tests.naive import initial_rows, stack_ids
from tests.support.checkpoints import SavedRows, read_rows
from tests.support.losses import batch_loss
from tests.support.row_optimizers import row_optimizer

SAVED_AS = {
    "adagrad": {"sum": "adagrad_sum"},
    "adam": {"exp_avg": "adam_mean", "exp_avg_sq": "adam_square"},
}
"""Columns of a checkpoint with the states of torch's optimizers for sparse gradients; others have the same names."""


class Table:
    """All rows that a run's samples read of one table, as an `nn.EmbeddingBag` under torch's optimizer."""

    def __init__(self, run: Run, name: str, ids: NDArray[np.uint64]) -> None:
        own = run.embedding.tables.get(name)
        self.dim = own.dim if own and own.dim else run.model.dim
        bound = own.init_bound if own and own.init_bound is not None else run.embedding.init_bound
        self.stack = own.hash_stack if own else None
        self.rounds = self.stack.rounds if self.stack else 1
        self.ids = np.unique(self.entries(ids))
        self.settings = own.optimizer if own and own.optimizer else run.optimizer.embedding
        rows: NDArray[np.float32] = initial_rows(  # type: ignore[no-untyped-call]
            run.seed, table_salt(name), self.ids.tolist(), self.dim, bound
        )
        self.initial = torch.from_numpy(rows)
        self.bag = nn.EmbeddingBag(len(rows), self.dim, mode="sum", sparse=True, _weight=self.initial.clone())
        own_kind = row_optimizer(self.settings, self.bag.weight)
        self.optimizer = own_kind or torch_optimizer(self.settings, list(self.bag.parameters()), sparse=True)
        # The initial state of new rows; torch's own kinds create most of it at their first step.
        self.start = {name: state.clone() for name, state in self.optimizer.state.get(self.bag.weight, {}).items()}

    def entries(self, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the ids of the rows of ids, `rounds` for each."""
        if self.stack is None:
            return ids
        stack = self.stack
        return np.array([row for id_ in ids for row in stack_ids(stack.rounds, stack.size, int(id_))], np.uint64)  # type: ignore[no-untyped-call]

    def rows_of(self, ids: NDArray[np.uint64]) -> torch.Tensor:
        """Return the positions of row ids in the table."""
        return torch.from_numpy(np.searchsorted(self.ids, ids))

    def reset(self, saved: SavedRows | None, step: int) -> None:
        """Load rows and optimizer state that were saved after `step` steps; unsaved rows are new."""
        kind = self.settings.kind
        names = SAVED_AS.get(kind) or {name: name for name in RowOptimizer(kind, self.settings.lr).states(self.dim)}
        state = {name: self.start.get(name, torch.zeros_like(self.initial)).clone() for name in names}
        weight = self.initial.clone()
        if saved is not None:
            where = self.rows_of(saved.ids)
            weight[where] = torch.from_numpy(saved.embedding)
            for name in names:
                state[name][where] = torch.from_numpy(saved.states[names[name]])
        with torch.no_grad():
            self.bag.weight.copy_(weight)
        if names:
            # torch's Adagrad counts in a tensor, its SparseAdam in a number.
            count = torch.tensor(float(step)) if isinstance(self.settings, Adagrad) else step
            self.optimizer.state[self.bag.weight] = {"step": count, **state}

    @torch.no_grad()
    def penalize(self) -> None:
        """Add l2 times the rows that have a gradient to it, and apply decay to them."""
        if isinstance(self.settings, Ftrl) or not (self.settings.l2 or self.settings.weight_decay):
            return
        weight = self.bag.weight
        assert weight.grad is not None
        gradient = weight.grad.coalesce()
        rows = gradient.indices()
        values = gradient.values() + self.settings.l2 * weight[rows[0]]
        weight.grad = torch.sparse_coo_tensor(rows, values, weight.shape)
        weight[rows[0]] *= 1 - self.settings.lr * self.settings.weight_decay

    def gradient(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows that the last step read, and their gradients."""
        assert self.bag.weight.grad is not None
        gradient = self.bag.weight.grad.coalesce()
        return gradient.indices()[0].numpy(), gradient.values().numpy()


class Oracle:
    """Steps 0, 1, … of a run, one after the other."""

    def __init__(self, run: Run, steps: int) -> None:
        self.features = sparse_features(run)
        self.batches = _batches(run, steps)
        read: dict[str, list[NDArray[np.uint64]]] = {}
        for number, feature in enumerate(self.features):
            read.setdefault(_table(feature), []).extend(_ids_of(batch, number)[0] for batch in self.batches)
        self.tables = {name: Table(run, name, np.concatenate(ids)) for name, ids in read.items()}
        shapes = tuple(
            FeatureShape(feature.name, self.tables[_table(feature)].dim, feature.pooling, feature.max_length)
            for feature in self.features
        )
        self.losses = run.losses
        self.half = {"float32": None, "bfloat16": torch.bfloat16}[run.train.precision]
        self.clip_norm = run.optimizer.dense.clip_norm
        self.module = build_model(
            run.model,
            InputShape(dense_count(run), shapes, len(self.losses), run.train.task_weights == "uncertainty"),
            run.seed,
        )
        self.log_variances = dict(self.module.named_parameters()).get("task_uncertainty.log_variances")
        self.optimizer = torch_optimizer(run.optimizer.dense, list(self.module.parameters()), sparse=False)

    def step(self, step: int) -> float:
        """Train one step; return its loss."""
        batch = self.batches[step]
        labels = torch.from_numpy(batch.labels)
        weights = np.ones(batch.size, np.float32) if batch.weights is None else batch.weights
        queries = None if batch.query_ids is None else torch.from_numpy(batch.query_ids.view(np.int64))
        before = None if self.log_variances is None else self.log_variances.detach().double()
        optimizers = [self.optimizer, *(table.optimizer for table in self.tables.values())]
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", self.half, enabled=self.half is not None):
            logits, auxiliary = split_output(self.module(self._inputs(batch)))
        logits = logits.float()
        # Torch warns unless the check of sparse tensors is set explicitly.
        with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
            loss = batch_loss(self.losses, logits, labels, torch.from_numpy(weights), self.log_variances, queries)
            own = self._auxiliary(auxiliary, torch.from_numpy(weights))
            (loss + own).backward()
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.module.parameters(), self.clip_norm)
            for table in self.tables.values():
                table.penalize()
            for optimizer in optimizers:
                optimizer.step()
        exact = (logits.detach().double(), labels.double(), torch.from_numpy(weights).double())
        return float(batch_loss(self.losses, *exact, before, queries)) + own.item()

    def _auxiliary(self, losses: torch.Tensor | None, weights: torch.Tensor) -> torch.Tensor:
        """Return the mean over samples, by their weights, of auxiliary losses: of those of tasks by the tasks' weights.

        A loss for all tasks has weight 1.
        """
        if losses is None:
            return torch.zeros(())
        shares = torch.tensor([loss.weight for loss in self.losses])
        of_sample = losses[:, 0] if losses.shape[1] == 1 else (losses * shares).sum(1) / shares.sum()
        return (of_sample * weights).sum() / weights.sum()

    def reset(self, checkpoint: Path, step: int) -> None:
        """Load every weight and optimizer state of a checkpoint after `step` steps."""
        load_dense(checkpoint / "dense", self.module, self.optimizer)
        saved = read_rows(checkpoint)
        for name, table in self.tables.items():
            table.reset(saved.get(name), step)

    def _inputs(self, batch: Batch) -> ModelBatch:
        pooled: dict[str, torch.Tensor] = {}
        sequences: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for number, feature in enumerate(self.features):
            table = self.tables[_table(feature)]
            ids, offsets = _ids_of(batch, number)
            rows, lengths = table.rows_of(table.entries(ids)), torch.from_numpy(np.diff(offsets))
            if feature.pooling == "none":
                sequences[feature.name] = _sequence(table, rows, lengths, feature.max_length or 0)
                continue
            summed = table.bag(rows, torch.from_numpy(offsets[:-1] * table.rounds))
            count = lengths.clamp(min=1).float().unsqueeze(1)
            divisor = {"sum": torch.ones(1), "mean": count, "sqrtn": count.sqrt()}[feature.pooling]
            pooled[feature.name] = summed / divisor
        groups = [vectors.unsqueeze(1) for vectors in pooled.values()]
        return ModelBatch(torch.from_numpy(batch.dense), groups, [[name] for name in pooled], sequences)


def torch_optimizer(
    config: Optimizer | DenseOptimizer, parameters: Sequence[nn.Parameter], sparse: bool
) -> torch.optim.Optimizer:
    """Return torch's optimizer of these settings; SparseAdam for the rows of tables."""
    match config:
        case Sgd() | DenseSgd():
            return torch.optim.SGD(parameters, lr=config.lr)
        case Adagrad() | DenseAdagrad():
            start = config.initial_accumulator_value if isinstance(config, Adagrad) else 0.0
            return torch.optim.Adagrad(parameters, lr=config.lr, initial_accumulator_value=start, eps=config.eps)
        case Adam() | DenseAdam():
            kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
            return kind(parameters, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)
        case AdamW():
            betas = (config.beta1, config.beta2)
            return torch.optim.AdamW(parameters, config.lr, betas, config.eps, config.weight_decay)


def _batches(run: Run, steps: int) -> list[Batch]:
    """Return the global batches of the first steps: consecutive rows, the last of each epoch perhaps fewer."""
    source = open_source(run.dataset, "train", run.seed, run.links, trains_on_queries(run))
    size = run.train.batch_size
    try:
        starts = [(epoch, start) for epoch in range(run.train.epochs) for start in range(0, source.rows, size)]
        return [source.read(epoch, start, min(start + size, source.rows)) for epoch, start in starts[:steps]]
    finally:
        source.close()


def _table(feature: SparseFeature) -> str:
    return feature.table or feature.name


def _ids_of(batch: Batch, feature: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return a feature's ids and their offsets int64 [n + 1]."""
    offsets = batch.offsets[feature * batch.size : (feature + 1) * batch.size + 1].astype(np.int64)
    return batch.ids[offsets[0] : offsets[-1]], offsets - offsets[0]


def _sequence(
    table: Table, rows: torch.Tensor, lengths: torch.Tensor, longest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values [n, longest, dim], zero where mask [n, longest] is False; no list is longer than `longest`."""
    mask = torch.arange(longest) < lengths.unsqueeze(1)
    vectors = nn.functional.embedding(rows.view(-1, table.rounds), table.bag.weight, sparse=True).sum(1)
    values = torch.zeros(*mask.shape, table.dim).masked_scatter(mask.unsqueeze(2), vectors)
    return values, mask

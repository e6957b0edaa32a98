"""Baselines on a GPU as graphs, like an NN worker's steps: neither side enqueues single operations from Python."""

from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from persia_cli.bench.baselines.trainers import SPARE, DenseBaseline
from persia_cli.bench.portions import Portion
from persia_cli.config.schema import Adagrad, Run
from persia_cli.data.read.masked_labels import weight_totals, without_unknown
from persia_cli.errors import UserError
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.outputs import split_output
from persia_cli.training.device import autocast
from persia_cli.training.graphs.blocks import BlockLayout, Field
from persia_cli.training.graphs.device_queue import CudaQueue, DeviceQueue, copies_of
from persia_cli.training.graphs.step import SLOTS, CapturedGraph, SlotViews
from persia_cli.training.graphs.update import NUMBERS, GraphUpdate
from persia_cli.training.loss import with_auxiliary


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
        self._flying: deque[SlotViews] = deque()

    def train(self, portion: Portion) -> float:
        """Enqueue a batch, and return the loss of an earlier one; the first runs without a graph."""
        if self._captured is None:
            loss = super().train(portion)
            self._captured = self._built(portion)
            return loss
        loss = self._landed() if len(self._flying) == SLOTS else 0.0
        views, captured = self._captured.free.get(), self._captured
        numbers = np.array(self._update.numbers(self._rate.at(self._step)), np.float32)
        arrays = self._arrays(portion) | {"numbers": numbers}
        pairs = [(views.given[name], np.ascontiguousarray(array)) for name, array in arrays.items()]
        sizes = captured.inputs.nbytes, captured.outputs.nbytes
        self._queue.submit(views.slot, captured.graph, copies_of(pairs), *sizes, lambda: 0)
        self._flying.append(views)
        self._step += 1
        return loss

    def settle(self) -> float:
        """Wait for all batches; return the loss of the last."""
        loss = 0.0
        while self._flying:
            loss = self._landed()
        return loss

    def _landed(self) -> float:
        assert self._captured is not None
        views = self._flying.popleft()
        self._queue.fetch(views.slot, copies_of([]))
        loss = float(views.result["loss"])
        self._captured.free.put(views)
        return loss

    def _arrays(self, portion: Portion) -> dict[str, NDArray[Any]]:
        own = portion.weights if portion.weights.size else None
        labels, weights = without_unknown(portion.labels, own)
        factors = self._objective.factors(weight_totals(portion.labels, own).tolist())
        arrays = {"factors": np.array(factors, np.float32), "dense": portion.dense, "labels": labels}
        return arrays if weights is None else arrays | {"weights": weights}

    def _built(self, portion: Portion) -> CapturedGraph:
        arrays = self._arrays(portion) | {"numbers": np.zeros(NUMBERS, np.float32)}
        fields = [Field(name, array.dtype, array.shape) for name, array in arrays.items()]
        outputs = BlockLayout([Field("loss", np.dtype(np.float32), ())])
        captured = CapturedGraph(self._queue, BlockLayout(fields), outputs)
        state = [*self._module.parameters(), *self._module.buffers(), *self._update.state, *self._rows_state()]
        kept = [each.detach().clone() for each in state]
        captured.graph = self._queue.capture(lambda: self._body(captured), lambda: self._body(captured))
        with torch.no_grad():
            for each, old in zip(state, kept, strict=True):
                each.copy_(old)
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
        return self._ready[0].detach().requires_grad_()

    def _move_rows(self, given: dict[str, torch.Tensor], vectors: torch.Tensor) -> None:
        """Do nothing: there are no rows."""

    def _rows_state(self) -> list[torch.Tensor]:
        return []


class GraphedTables(GraphedDense):
    """All of the model on the GPU: the tables joined in one, with Adagrad on the unique rows of each batch."""

    name = "tables"

    def __init__(self, run: Run, sizes: tuple[int, ...], device: DeviceQueue | None = None) -> None:
        """Build the table; raises UserError for other optimizers of rows, and if it does not fit into the memory."""
        super().__init__(run, device)
        optimizer = run.optimizer.embedding
        if not isinstance(optimizer, Adagrad) or optimizer.l2 or optimizer.weight_decay:
            raise UserError("tables on a GPU are compared with optimizer.embedding.kind=adagrad without decay")
        self._optimizer, self._count = optimizer, sum(sizes)
        needed = 2 * (self._count + 1) * self._dim * 4
        if self.device.type == "cuda" and needed > SPARE * torch.cuda.mem_get_info(self.device)[0]:
            raise UserError(f"the tables need {needed / 2**30:.1f} GiB, more than is free on {self.device}")
        self._ready = self._ready[:1]
        self._weights = self._uniform((self._count + 1, self._dim), run.seed)
        self._sums = torch.full_like(self._weights, optimizer.initial_accumulator_value)

    def _arrays(self, portion: Portion) -> dict[str, NDArray[Any]]:
        return super()._arrays(portion) | {"ids": portion.rows}

    def _rows_state(self) -> list[torch.Tensor]:
        return [self._weights, self._sums]

    def prepare(self) -> None:
        """Set torch up without its reproducible operations, which take longer."""
        super().prepare()
        torch.set_deterministic_debug_mode("default")

    def embeddings(self, portion: Portion) -> torch.Tensor:
        """Look up the rows of a batch without a graph."""
        self._first = {"ids": torch.from_numpy(portion.rows).to(self.device)}
        self._looked_up = self._vectors(self._first)
        return self._looked_up

    def update_rows(self) -> None:
        """Move the rows of a batch without a graph."""
        self._move_rows(self._first, self._looked_up)

    def _vectors(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.embedding(given["ids"], self._weights).requires_grad_()

    @torch.no_grad()
    def _move_rows(self, given: dict[str, torch.Tensor], vectors: torch.Tensor) -> None:
        """Add up the gradients of each row, in a fixed order and in fixed shapes, and take Adagrad's step."""
        assert vectors.grad is not None
        gradient = vectors.grad.view(-1, self._dim)
        ids, order = torch.sort(given["ids"].view(-1))
        first = torch.ones_like(ids, dtype=torch.bool)
        torch.ne(ids[1:], ids[:-1], out=first[1:])
        number = torch.cumsum(first, 0) - 1
        # Places that are not used have the row behind the last one.
        unique = torch.full_like(ids, self._count).scatter_(0, number, ids)
        summed = torch.zeros_like(gradient).index_add_(0, number, gradient.index_select(0, order))
        sums = self._sums.index_select(0, unique).addcmul_(summed, summed)
        self._sums.index_copy_(0, unique, sums)
        roots = sums.sqrt().add_(self._optimizer.eps)
        moved = self._weights.index_select(0, unique).addcdiv_(summed, roots, value=-self._optimizer.rate)
        self._weights.index_copy_(0, unique, moved)

    def row(self, number: int) -> NDArray[np.float32]:
        """Return a row, float32 [dim]."""
        values: NDArray[np.float32] = self._weights[number].cpu().numpy()
        return values

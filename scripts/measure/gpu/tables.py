"""The whole model on a GPU, as a graph, for comparison."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch.nn import functional

from persia_cli.bench.baselines import SPARE, GraphedDense
from persia_cli.bench.portions import Portion, table_sizes
from persia_cli.config.schema import Adagrad, Run
from persia_cli.errors import UserError
from persia_cli.training.graphs.device_queue import DeviceQueue


class GraphedTables(GraphedDense):
    """All of the model on the GPU: the tables joined in one, with Adagrad on the unique rows of each batch."""

    name = "tables"

    def __init__(self, run: Run, device: DeviceQueue | None = None) -> None:
        """Build the table; raises UserError for other optimizers of rows, and if it does not fit into the memory."""
        sizes = table_sizes(run)
        super().__init__(run, device)
        optimizer = run.optimizer.embedding
        if not isinstance(optimizer, Adagrad) or optimizer.l2 or optimizer.weight_decay:
            raise UserError("tables on a GPU are compared with optimizer.embedding.kind=adagrad without decay")
        self._optimizer, self._count = optimizer, sum(sizes)
        needed = 2 * (self._count + 1) * self._dim * 4
        if self.device.type == "cuda" and needed > SPARE * torch.cuda.mem_get_info(self.device)[0]:
            raise UserError(f"the tables need {needed / 2**30:.1f} GiB, more than is free on {self.device}")
        self._embeddings = self._embeddings[:1]
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

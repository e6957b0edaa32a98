"""The loader's part of a loss of next elements: candidates of a rank's step, and the weights of positions.

The candidates are a pure function of the seed, the step and the rank. So a resumed job, a replaced loader and any
number of loaders send the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.loss import SampledSoftmax
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.item_keys import has_item
from persia_cli.data.read.position_weights import position_weights
from persia_cli.data.read.random_bits import salt, stream
from persia_cli.data.read.trained_items import TrainedItems
from persia_cli.errors import DataError

NO_IDS = np.empty(0, np.uint64)
_NEGATIVES = 0x6E6567
"""The salt of drawn negatives."""


@dataclass(frozen=True)
class NextItemFeed:
    """The feed of the loss in a loader: the numbers of the features of the item and of its sequence, and all items."""

    loss: SampledSoftmax
    item: int
    sequence: int
    items: TrainedItems
    seed: int

    def __post_init__(self) -> None:
        """Raise DataError for a single item, which has nothing to be compared with."""
        if self.items.ids.size < 2:
            raise DataError(
                f"the training rows have {self.items.ids.size} different items, and train.losses: "
                "kind=sampled_softmax compares items with each other; correct the data or dataset.sparse"
            )

    @property
    def drawn_share(self) -> float:
        """The probability that an item is among the drawn negatives; 0.0 if none are drawn."""
        if self.loss.candidates != "uniform":
            return 0.0
        count, items = self.loss.negatives, self.items.ids.size
        return 1.0 if count >= items else float(-np.expm1(count * np.log1p(-1.0 / items)))

    def negatives(self, step: int, rank: int) -> NDArray[np.uint64]:
        """Return the ids of a rank's negatives, uint64[k]: drawn with repetition, or all items if they are no more."""
        ids, count = self.items.ids, self.loss.negatives
        if count >= ids.size:
            return np.asarray(ids)
        bits = stream(salt(self.seed, _NEGATIVES, step, rank), np.arange(count, dtype=np.uint64))
        drawn: NDArray[np.uint64] = ids[bits % np.uint64(ids.size)]
        return drawn

    @cached_property
    def _occurrences(self) -> float:
        """Number of all items of all training rows."""
        return float(self.items.counts.sum())

    def log_q(self, whole: Batch, ranks: Sequence[tuple[int, int]]) -> list[NDArray[np.float32] | None]:
        """Return for each rank's samples [start, stop) the logarithm of the probability that its step has an item.

        float32[ids of its sequences + n]: of the elements of sequences, in their order, then of each sample's item.
        An item is there as a target, by its frequency in the training rows. None if candidates are drawn.
        """
        if self.loss.candidates != "batch":
            return [None] * len(ranks)
        elements, bounds = whole.lists[self.sequence]
        items = whole.lists[self.item][0]
        shares = self._shares(np.concatenate([elements, items]))
        log_q: list[NDArray[np.float32] | None] = []
        for start, stop in ranks:
            of_rank = shares[bounds[start] : bounds[stop]], shares[elements.size + start : elements.size + stop]
            # A sequence of n elements has n targets: all but its first element, and the item.
            lengths = np.diff(bounds[start : stop + 1])
            targets = lengths.sum() if self.loss.positions == "all" else np.count_nonzero(lengths)
            chances = -np.expm1(max(1, int(targets)) * np.log1p(-np.concatenate(of_rank)))
            log_q.append(np.log(chances).astype(np.float32))
        return log_q

    def _shares(self, ids: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the share of each item among all occurrences; of one that is in no training row, as of one in one."""
        places = np.minimum(np.searchsorted(self.items.ids, ids), self.items.ids.size - 1)
        counts = np.where(self.items.ids[places] == ids, self.items.counts[places], 1)
        shares: NDArray[np.float64] = counts / self._occurrences
        return shares

    def totals(self, whole: Batch) -> NDArray[np.float64]:
        """Return the sum of the weights of all positions of a step, float64[1]."""
        bounds = whole.lists[self.sequence][1].astype(np.int64)
        newest = 1 if self.loss.positions == "last" else int(bounds[-1])
        weights = position_weights(bounds, whole.labels[:, 0], whole.weights, newest)
        return np.array([weights.sum(dtype=np.float64)])

    def without_nulls(self, batch: Batch) -> Batch:
        """Return a batch of training with label 0 for samples without an item, whose sequences are learned from."""
        there = has_item(batch, [self.item])
        return batch if there.all() else replace(batch, labels=np.where(there[:, None], batch.labels, 0 * batch.labels))


def with_negatives(batch: Batch, ids: NDArray[np.uint64]) -> Batch:
    """Return a batch with one more feature, the last, whose `ids` are all of the first sample.

    A batch without samples gets none.
    """
    given = ids if batch.size else ids[:0]
    ends = np.full(batch.size, batch.ids.size + given.size, np.uint32)
    return replace(
        batch,
        ids=np.concatenate([batch.ids, given]),
        offsets=np.concatenate([batch.offsets, ends]),
        features=batch.features + 1,
    )

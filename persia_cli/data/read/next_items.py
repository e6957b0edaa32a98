"""The loader's part of a loss of next elements: candidates of a rank's step, and the weights of positions.

The candidates are a pure function of the seed, the step and the rank. So a resumed job, a replaced loader and any
number of loaders send the same.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.loss import SampledSoftmax
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.item_keys import has_item
from persia_cli.data.read.random_bits import salt, stream
from persia_cli.data.read.trained_items import TrainedItems
from persia_cli.errors import DataError

NO_IDS = np.empty(0, np.uint64)
_NEGATIVES = 0x6E6567
"""The salt of drawn negatives."""


@dataclass(frozen=True, slots=True)
class NextItemFeed:
    """What a loader needs for the loss: numbers of the features of the item and of its sequence, and the items."""

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
    def drawn(self) -> float:
        """The number of drawn negatives over that of items; 0.0 if none are drawn."""
        return min(1.0, self.loss.negatives / self.items.ids.size) if self.loss.candidates == "uniform" else 0.0

    def negatives(self, step: int, rank: int) -> NDArray[np.uint64]:
        """Return the ids of a rank's negatives, uint64[k]: drawn with repetition, or all items if they are no more."""
        ids, count = self.items.ids, self.loss.negatives
        if count >= ids.size:
            return np.asarray(ids)
        bits = stream(salt(self.seed, _NEGATIVES, step, rank), np.arange(count, dtype=np.uint64))
        drawn: NDArray[np.uint64] = ids[bits % np.uint64(ids.size)]
        return drawn

    def log_q(self, part: Batch) -> NDArray[np.float32] | None:
        """Return the logarithm of the probability that a rank's step has an item as a target, for each of its ids.

        float32[ids of all sequences + n]: of the elements of sequences, in their order, then of each sample's item.
        It is by the frequency of items in the training rows. None if candidates are drawn.
        """
        if self.loss.candidates != "batch":
            return None
        ids = np.concatenate([part.lists[self.sequence][0], part.lists[self.item][0]])
        places = np.minimum(np.searchsorted(self.items.ids, ids), self.items.ids.size - 1)
        counts = np.where(self.items.ids[places] == ids, self.items.counts[places], 1)
        shares = counts / float(self.items.counts.sum())
        lengths = np.diff(part.lists[self.sequence][1])
        # A sequence of n elements has n targets: all but its first element, and the item.
        targets = lengths.sum() if self.loss.positions == "all" else np.count_nonzero(lengths)
        chances: NDArray[np.float64] = -np.expm1(max(1, int(targets)) * np.log1p(-shares))
        return np.log(chances).astype(np.float32)

    def totals(self, whole: Batch) -> NDArray[np.float64]:
        """Return the sum of the weights of all positions of a step, float64[1].

        Samples whose label is not known, and those with an empty sequence, have none.
        """
        lengths = np.diff(whole.lists[self.sequence][1])
        labels = whole.labels[:, 0].astype(np.float64)
        weights = np.ones(whole.size) if whole.weights is None else whole.weights.astype(np.float64)
        earlier = np.maximum(lengths - 1, 0) if self.loss.positions == "all" else 0
        known = ~np.isnan(labels) & (lengths > 0)
        return np.array([(weights * (earlier + labels))[known].sum()])

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

"""The loss of next elements of sequences: a softmax of each one among sampled items.

A sample's sequence and its item are one history, each element of which is to predict the next. All are ids of one
table, as the candidates are. So an item is the number of its row among the unique rows of the step, and a candidate
with the row of the element to predict is none.

Candidates are drawn by the data loaders, or they are the elements to predict of a rank's step. The score of each is
corrected by the logarithm of its probability to be a candidate: Yi et al., RecSys 2019, doi 10.1145/3298689.3346996. In
evaluations the newest element of a sequence predicts the item among the items of the rank's step. So the loss of an
evaluation cannot be compared with that of other batches.

The numbers of a batch, for samples with the sequences "a b c" and "d" and the items "d" and "a", whose unique rows are
a=0, b=1, c=2, d=3. A slot whose element has a weight is a position that learns:

    entry      0  1  2  | 3         elements of all sequences, as they came; `stops` are 3 and 4
    row        0  1  2  | 3         `StepPositions.rows`, by entry
    target     1  2  3  | 0         `StepPositions.targets`: row of the next element; after the newest, of the item
    weight     w  w  wy | wy        `StepPositions.weights`, of the sample's weight w and label y

    slot       0  1  2  | 3  4  5   sequences in the order of `ragged.plan`, by length; padded at their ends
    sequence   1  1  1  | 0  0  0   `Slots.sequence`: number of the sample
    age        0 -1 -2  | 2  1  0   `Slots.age`: distance from the newest element; below 0 in padded slots
    entry      3  .  .  | 0  1  2   `stops[sequence] - 1 - age`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding

from persia_cli.config.schema import SampledSoftmax
from persia_cli.data.read.position_weights import position_weights
from persia_cli.kernels.batch.bags import check_bags
from persia_cli.model.two_sides import Sides, TwoSides
from persia_cli.training.inputs import GroupShape, Samples, entries_of
from persia_cli.training.ragged_rows import Copy, Numbers, RaggedRows, ragged_rows
from persia_cli.wire.messages import GroupRows

Floats = NDArray[np.float32]


class SampledItems(NamedTuple):
    """The rows of a step's candidates, int64 [c], and the logarithm of the probability of each, [c].

    They are in the order of appearance: numbers of rows depend on the embedding servers, and rounding on the order.
    """

    rows: Numbers
    log_q: Floats


class StepPositions(NamedTuple):
    """The elements of all sequences of a rank's step, in their order, as positions that predict the next element."""

    rows: Numbers
    """Row of each element, int64 [E]."""
    targets: Numbers
    """Row of the next element, int64 [E]; of the newest one of a sequence, the row of the sample's item."""
    weights: Floats
    """Weight of each position's loss, float32 [E]; 0 where it has none."""
    stops: Numbers
    """End of each sample's sequence, int64 [n]."""
    lengths: Numbers
    """Number of its newest elements that the network reads, int64 [n]."""
    items: Numbers
    """Row of each sample's item, int64 [n]."""
    gaps: Floats | None
    """Times between the elements that the network reads, float32 [n, length] (`persia_cli.data.read.gaps`), if any."""
    candidates: SampledItems


@dataclass(frozen=True, slots=True)
class NextItems:
    """Some samples of a step on the device; arrays int64, but for `weights` and `log_q` float32."""

    group: int
    """Number of the group with the rows."""
    sequences: RaggedRows
    slots: torch.Tensor
    """Slot of each of P positions with a weight, [P]; `targets` and `weights` are theirs, `samples` their samples."""
    targets: torch.Tensor
    weights: torch.Tensor
    samples: torch.Tensor
    hits: tuple[torch.Tensor, torch.Tensor]
    """Positions, and the candidates that are their targets."""
    candidates: torch.Tensor
    """Row of each candidate, [c]."""
    log_q: torch.Tensor
    items: torch.Tensor
    """Row of each sample's item, [n]."""
    step_weight: float
    """Sum of the weights of the positions of the rank's step, of all samples."""


class NextItemStaging:
    """The preparation of the steps of ranks whose loss is of next elements."""

    def __init__(self, loss: SampledSoftmax, groups: Sequence[GroupShape]) -> None:
        """One of `groups` has the sequence, the item, and the negatives if some are drawn, each by its pooling."""
        self._loss = loss
        [self._group] = [number for number, shape in enumerate(groups) if shape.features]
        features = groups[self._group].features
        self._number_of = {feature.pooling: number for number, feature in enumerate(features)}
        [self._item] = [number for pooling, number in self._number_of.items() if pooling not in ("none", "negatives")]
        self._longest = features[self._number_of["none"]].max_length or 1
        self._positions = 1 if loss.positions == "last" else self._longest

    def positions(self, samples: Samples, groups: Sequence[GroupRows], seed: int | None) -> StepPositions:
        """Return the positions of a rank's samples; without `seed`, which chooses candidates, for an evaluation.

        Raise ValueError for ids without a row, or if the ids do not fit the samples.
        """
        group, size = groups[self._group], len(samples.labels)
        rounds = np.ones(len(self._number_of), np.int64)
        check_bags(group.inverse, group.offsets, size * rounds.size, sum(map(len, group.rows)), rounds)
        rows, bounds = entries_of(group, self._number_of["none"], size)
        items, per_sample = entries_of(group, self._item, size)
        if not np.array_equal(per_sample, np.arange(size + 1)):
            raise ValueError("a loss of next elements needs exactly one item for each sample")
        stops, lengths = bounds[1:], np.diff(bounds)
        targets = _following(rows, items, bounds)
        newest = 1 if seed is None else self._positions
        weights = position_weights(bounds, samples.labels[:, 0], samples.weights, newest)
        return StepPositions(
            rows.astype(np.int64),
            targets.astype(np.int64),
            weights,
            stops,
            np.minimum(lengths, self._longest),
            items.astype(np.int64),
            samples.dense if samples.dense.shape[1] else None,
            self._candidates(samples, group, items, targets, weights, bounds, seed),
        )

    def _candidates(
        self,
        samples: Samples,
        group: GroupRows,
        items: NDArray[np.int32],
        targets: NDArray[np.int32],
        weights: Floats,
        bounds: Numbers,
        seed: int | None,
    ) -> SampledItems:
        """Return the candidates of a step; of one of an evaluation, its items, whose scores are not corrected.

        Those of samples without weight, such as null items, are none.
        """
        if seed is not None and self._loss.candidates == "uniform":
            drawn, _ = entries_of(group, self._number_of["negatives"], len(samples.labels))
            rows = drawn[_first_places(drawn)].astype(np.int64)
            return SampledItems(rows, np.full(rows.size, np.log(samples.drawn_share), np.float32))
        if seed is None:
            there = ~np.isnan(samples.labels[:, 0]) & (True if samples.weights is None else samples.weights != 0)
            rows = items[there][_first_places(items[there])].astype(np.int64)
            return SampledItems(rows, np.zeros(rows.size, np.float32))
        learning = np.flatnonzero(weights)
        first = _first_places(targets[learning])
        rows = targets[learning[first]].astype(np.int64)
        if samples.log_q is None or samples.log_q.size != targets.size + len(samples.labels):
            raise ValueError("a loss of next elements among themselves needs the probability of each")
        log_q = _following(samples.log_q[: targets.size], samples.log_q[targets.size :], bounds)[learning[first]]
        if rows.size <= self._loss.negatives:
            return SampledItems(rows, log_q)
        chosen = np.random.default_rng(seed).choice(rows.size, self._loss.negatives, replace=False)
        chosen.sort()
        return SampledItems(rows[chosen], log_q[chosen] + np.float32(np.log(chosen.size / rows.size)))

    def stage(self, whole: StepPositions, cut: slice, copy: Copy) -> NextItems:
        """Copy the samples of a `cut` to the device, ragged."""
        gaps = None if whole.gaps is None else whole.gaps[cut]
        sequences, slots, entries = ragged_rows(whole.rows, whole.stops[cut], whole.lengths[cut], copy, gaps)
        learning = np.flatnonzero((slots.age >= 0) & (whole.weights[entries] != 0))
        targets = whole.targets[entries[learning]]
        rows = whole.candidates.rows
        ascending = np.argsort(rows)
        where = np.append(ascending, rows.size)[np.searchsorted(rows, targets, sorter=ascending)]
        hits = np.flatnonzero(np.append(rows, -1)[where] == targets)
        return NextItems(
            group=self._group,
            sequences=sequences,
            slots=copy(learning),
            targets=copy(targets),
            weights=copy(whole.weights[entries[learning]]),
            samples=copy(slots.sequence[learning]),
            hits=(copy(hits), copy(where[hits])),
            candidates=copy(rows),
            log_q=copy(whole.candidates.log_q),
            items=copy(whole.items[cut]),
            step_weight=float(whole.weights.sum(dtype=np.float64)),
        )


def _first_places(rows: NDArray[np.int32]) -> Numbers:
    """Return the place of the first appearance of each row, ascending."""
    return np.sort(np.unique(rows, return_index=True)[1])


def _following(elements: NDArray[Any], items: NDArray[Any], bounds: Numbers) -> NDArray[Any]:
    """Return for each element what the next one of its sequence has; for the newest one, what the sample's item has."""
    following = np.roll(elements, -1)
    has_some = np.diff(bounds) > 0
    following[bounds[1:][has_some] - 1] = items[has_some]
    return following


def next_item_losses(
    network: TwoSides, states: torch.Tensor, batch: NextItems, leaf: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and weighted losses float32 [n, 1] of samples, whose slots have these states [slots, dim].

    The logit is of a sample's item after its whole sequence, without a gradient; a weighted loss is the sum over the
    positions of the sample. The loss of a position with the score s of its target is
    log(exp(s) + sum over j of exp(s_j - log_q_j)) - s over the candidates j with another row.
    """
    states, size = states.float(), batch.sequences.size
    users, targets = states[batch.slots] / temperature, embedding(batch.targets, leaf)
    losses = _Softmax.apply(users, targets, embedding(batch.candidates, leaf), batch.log_q, batch.hits)  # type: ignore[no-untyped-call]
    weighted = states.new_zeros(size).index_add(0, batch.samples, losses * batch.weights)
    with torch.no_grad():
        logits = network.scores(Sides(batch.sequences.last(states), embedding(batch.items, leaf)))
    return logits, weighted.unsqueeze(1)


class _Softmax(torch.autograd.Function):
    """The losses [P] of users [P, dim] with their targets [P, dim] among candidates [c, dim].

    One function, since P times c scores are most of a step: each separate operation would write them again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        users: torch.Tensor,
        targets: torch.Tensor,
        candidates: torch.Tensor,
        log_q: torch.Tensor,
        hits: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        scores = torch.addmm(log_q, users, candidates.T, beta=-1)
        scores[hits] = -torch.inf
        own = (users * targets).sum(1)
        most = torch.maximum(scores.amax(1), own) if len(candidates) else own
        parts, own_part = scores.sub_(most.unsqueeze(1)).exp_(), torch.exp(own - most)
        total = parts.sum(1) + own_part
        ctx.save_for_backward(users, targets, candidates, parts, own_part / total - 1.0, total)
        return most + total.log() - own

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        users, targets, candidates, parts, own, total = ctx.saved_tensors
        own = (outer[0] * own).unsqueeze(1)
        slopes = parts.mul_((outer[0] / total).unsqueeze(1))
        return torch.addmm(own * targets, slopes, candidates), own * users, slopes.T @ users, None, None

"""A batch: the arrays that a data loader makes of consecutive samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import DataError
from persia_cli.kernels.toolchain.memory import Empty

_MAX_IDS = 2**32 - 1


def is_single(offsets: NDArray[np.uint32]) -> bool:
    """Return True if every feature of every sample has exactly one id."""
    # So many rising integers from 0 to their number have no gap.
    return (int(offsets[0]), int(offsets[-1])) == (0, offsets.size - 1) and bool((offsets[1:] > offsets[:-1]).all())


class Ids(NamedTuple):
    """Ids of a feature: uint64 values and, unless each sample has exactly one, int64 offsets [samples + 1]."""

    values: NDArray[np.uint64]
    offsets: NDArray[np.int64] | None


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the offsets int64 [n + 1], from 0, of n lists of these lengths."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def take_ids(ids: Ids, rows: NDArray[np.int64], max_length: int | None = None) -> Ids:
    """Return the lists of ids of some samples, in the order given, at most the last `max_length` ids of each."""
    assert ids.offsets is not None
    ends = ids.offsets[rows + 1]
    lengths = ends - ids.offsets[rows]
    if max_length is not None:
        lengths = np.minimum(lengths, max_length)
    offsets = offsets_of(lengths)
    source = np.repeat(ends - lengths - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Ids(ids.values[source], offsets)


def join_ids(parts: Sequence[Ids]) -> Ids:
    """Join the lists of ids of several runs of samples into one."""
    lengths = [np.diff(part.offsets) for part in parts if part.offsets is not None]
    return Ids(np.concatenate([part.values for part in parts]), offsets_of(np.concatenate(lengths)))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples of a step, or of one rank's part of it; n samples, D dense columns, T tasks, F sparse features.

    The ids are one CSR block, feature by feature: ids of feature f and sample s are
    `ids[offsets[f * n + s] : offsets[f * n + s + 1]]`.
    """

    dense: NDArray[np.float32]
    """[n, D]"""
    labels: NDArray[np.float32]
    """[n, T]"""
    weights: NDArray[np.float32] | None
    """[n], or None where every sample has weight 1"""
    ids: NDArray[np.uint64]
    """[offsets[-1]]"""
    offsets: NDArray[np.uint32]
    """[F * n + 1]"""
    features: int
    """F"""
    query_ids: NDArray[np.uint64] | None
    """[n], the query (a user, say) of each sample, within which GAUC ranks; or None"""
    bad: tuple[int, ...] = ()
    """Of a whole step: the numbers of rows that are left out, with weight 0, since a value cannot be used."""
    why: str = ""
    """A sentence on the first of them."""

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.labels)

    @property
    def lists(self) -> list[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """Each feature's ids, and their offsets [n + 1] from 0."""
        bounds = self.offsets.astype(np.int64)
        spans = [bounds[f * self.size : (f + 1) * self.size + 1] for f in range(self.features)]
        return [(self.ids[span[0] : span[-1]], span - span[0]) for span in spans]

    def copy(self, empty: Empty) -> "Batch":
        """Return the same samples in arrays made by `empty`."""
        return Batch(
            dense=_copy(self.dense, empty),
            labels=_copy(self.labels, empty),
            weights=None if self.weights is None else _copy(self.weights, empty),
            ids=_copy(self.ids, empty),
            offsets=_copy(self.offsets, empty),
            features=self.features,
            query_ids=None if self.query_ids is None else _copy(self.query_ids, empty),
        )

    def rows(self, start: int, stop: int) -> "Batch":
        """Return samples [start, stop) as a separate batch; its arrays are contiguous."""
        n = self.size  # slices are several times as fast as indices, and each rank's step is cut here
        spans = [self.offsets[f * n + start : f * n + stop + 1] for f in range(self.features)]
        return assemble(
            dense=np.ascontiguousarray(self.dense[start:stop]),
            labels=np.ascontiguousarray(self.labels[start:stop]),
            weights=None if self.weights is None else self.weights[start:stop].copy(),
            ids=[self.ids[span[0] : span[-1]] for span in spans],
            offsets=[span - span[0] for span in spans],
            query_ids=None if self.query_ids is None else self.query_ids[start:stop].copy(),
        )

    def take(self, chosen: NDArray[np.int64]) -> "Batch":
        """Return these samples, in this order, as a separate batch."""
        taken = [take_ids(Ids(*ids), chosen) for ids in self.lists]
        return assemble(
            dense=self.dense[chosen],
            labels=self.labels[chosen],
            weights=None if self.weights is None else self.weights[chosen],
            ids=[ids.values for ids in taken],
            offsets=[ids.offsets for ids in taken],
            query_ids=None if self.query_ids is None else self.query_ids[chosen],
        )

    def newest(self, lengths: Sequence[int | None]) -> "Batch":
        """Return the samples with at most so many ids of each feature, the last ones; None: all."""
        every, lists = np.arange(self.size), zip(self.lists, lengths, strict=True)
        cut = [take_ids(Ids(*ids), every, length) for ids, length in lists]
        ids, offsets = [each.values for each in cut], [each.offsets for each in cut]
        return assemble(self.dense, self.labels, self.weights, ids, offsets, self.query_ids)


def _copy(array: NDArray[Any], empty: Empty) -> NDArray[Any]:
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def assemble(
    dense: NDArray[np.float32],
    labels: NDArray[np.float32],
    weights: NDArray[np.float32] | None,
    ids: Sequence[NDArray[np.uint64]] | NDArray[np.uint64],
    offsets: Sequence[NDArray[np.integer] | None],
    query_ids: NDArray[np.uint64] | None = None,
) -> Batch:
    """Make a batch from one id array per feature, each with offsets [n + 1] from 0, or None where each sample has one.

    The ids may be a matrix [features, n], which the batch then keeps.
    Raises DataError if there are more ids than 32-bit offsets can count.
    """
    features, n = len(ids), labels.shape[0]
    total = sum(part.size for part in ids)
    if total > _MAX_IDS:
        raise DataError(f"{n} samples hold {total} ids, more than 2**32 - 1; give long sequences a max_length")
    if all(part is None for part in offsets):
        joined = np.arange(features * n + 1, dtype=np.uint32)
    else:
        joined = np.zeros(features * n + 1, np.uint32)
        first = 0
        for f, (part, feature_offsets) in enumerate(zip(ids, offsets, strict=True)):
            ends = np.arange(1, n + 1) if feature_offsets is None else feature_offsets[1:]
            joined[f * n + 1 : (f + 1) * n + 1] = ends + first
            first += part.size
    if isinstance(ids, np.ndarray):
        block = ids.reshape(-1)
    else:
        block = np.concatenate(ids) if ids else np.empty(0, np.uint64)
    return Batch(dense, labels, weights, block, joined, features, query_ids)


def join(parts: Sequence[Batch]) -> Batch:
    """Return the samples of several batches of the same shape, in order, as one batch."""
    if len(parts) == 1:
        return parts[0]
    lists = [
        join_ids([Ids(*ids) for ids in of_parts]) for of_parts in zip(*(part.lists for part in parts), strict=True)
    ]
    weights = [part.weights for part in parts if part.weights is not None]
    query_ids = [part.query_ids for part in parts if part.query_ids is not None]
    whole = assemble(
        dense=np.concatenate([part.dense for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        weights=np.concatenate(weights) if weights else None,
        ids=[ids.values for ids in lists],
        offsets=[ids.offsets for ids in lists],
        query_ids=np.concatenate(query_ids) if query_ids else None,
    )
    bad = [part for part in parts if part.bad]
    return replace(whole, bad=sum((part.bad for part in bad), ()), why=bad[0].why) if bad else whole

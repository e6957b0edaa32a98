"""GAUC: the AUC within the samples of each query (of each user, say), averaged over queries."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.read.ids import NULL_ID
from persia_cli.errors import WireError
from persia_cli.observe.scores import ascending_numbers
from persia_cli.wire.job_messages import ScoredSamples

Array = np.ndarray[Any, Any]


class QueryScores:
    """The scores of single samples with their query ids; GAUC is exact for any division of queries into parts.

    It needs 8 + 8 T bytes per sample of T tasks, and 4 more if samples have weights.
    """

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self._parts: list[ScoredSamples] = []

    def add(
        self,
        query_ids: NDArray[np.uint64],
        logits: NDArray[np.float32],
        labels: NDArray[np.float32],
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        """Add n samples: query_ids [n], logits and labels [n, T] (NaN if not known), weights [n] or None for ones.

        Samples whose query id is null belong to no query and are left out.
        """
        # Copies, since an array of a message may retain the memory of the whole message.
        rows = np.flatnonzero(query_ids != np.uint64(NULL_ID))
        self._parts.append(
            ScoredSamples(query_ids[rows], logits[rows], labels[rows], None if weights is None else weights[rows])
        )

    def encode(self) -> ScoredSamples | None:
        """Return all samples, for `merge_encoded`; None if there are none."""
        if not self._parts:
            return None
        *arrays, weights = zip(*self._parts, strict=True)
        query_ids, logits, labels = map(np.concatenate, arrays)
        return ScoredSamples(query_ids, logits, labels, None if weights[0] is None else np.concatenate(weights))

    def merge_encoded(self, samples: ScoredSamples | None) -> None:
        """Add the samples of another part; raises WireError if they are not of as many tasks."""
        if samples is None:
            return
        tasks = samples.logits.shape[1]
        if tasks != self.tasks:
            raise WireError(f"samples with query ids have scores of {tasks} tasks, and {self.tasks} are needed")
        self.add(*samples)

    def gauc(self, task: int = 0) -> float | None:
        """Return the mean of the AUC of each query, weighted by the query's samples (their weights).

        Samples without a known label are left out, and queries with labels of one class, which have no AUC; None if
        all are left out. Pairs of equal logits count half. This is the impression-weighted variant of Zhu et al.,
        "Optimized Cost per Click in Taobao Display Advertising" (KDD 2017), which DIN (KDD 2018) reports. A million
        samples take about 0.3 s on an idle core, and 130 MB of memory meanwhile.
        """
        samples = self.encode()
        if samples is None or not len(samples.query_ids):
            return None
        query_ids, logits, labels, weights = samples
        numbers = np.unique(query_ids, return_inverse=True)[1].astype(np.uint64)
        w = np.ones(len(query_ids)) if weights is None else weights.astype(np.float64)
        y = labels[:, task].astype(np.float64)
        if (unknown := np.isnan(y)).any():
            y, w = np.where(unknown, 0.0, y), np.where(unknown, 0.0, w)
        return _gauc(numbers, logits[:, task], y, w)


def _gauc(query_ids: Array, logits: Array, labels: Array, weights: Array) -> float | None:
    """Return the GAUC of one task of n > 0 samples, arrays [n]; query ids are numbers below 2**32."""
    # One key for query and logit, since numpy sorts plain integers several times faster than two keys.
    keys = query_ids << np.uint64(32) | ascending_numbers(logits).astype(np.uint64)
    order = np.argsort(keys)
    keys = keys[order]
    positives = (weights * labels)[order]
    negatives = (weights * (1.0 - labels))[order]
    # First add up the samples of equal logits, then those of each query.
    ties = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    tied_positives, tied_negatives = np.add.reduceat(positives, ties), np.add.reduceat(negatives, ties)
    tied_queries = keys[ties] >> np.uint64(32)
    begins_query = np.r_[True, tied_queries[1:] != tied_queries[:-1]]
    first_of_query, query_of_tie = np.flatnonzero(begins_query), np.cumsum(begins_query) - 1
    before = np.cumsum(tied_negatives) - tied_negatives
    below = before - before[first_of_query][query_of_tie] + tied_negatives / 2
    right = np.add.reduceat(tied_positives * below, first_of_query)
    all_positives = np.add.reduceat(tied_positives, first_of_query)
    all_negatives = np.add.reduceat(tied_negatives, first_of_query)
    pairs = all_positives * all_negatives
    judged = pairs > 0.0
    sizes = (all_positives + all_negatives)[judged]
    return float((sizes * right[judged] / pairs[judged]).sum() / sizes.sum()) if judged.any() else None

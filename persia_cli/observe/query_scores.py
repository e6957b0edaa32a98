"""GAUC: the AUC within the samples of each query (of each user, say), averaged over queries."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import WireError
from persia_cli.observe.cells import rising

Array = np.ndarray[Any, Any]


class QueryScores:
    """The scores of single samples with their query ids; GAUC is exact however queries are spread over parts.

    It needs 8 + 8 T bytes per sample of T tasks, and 4 more if samples have weights.
    """

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self._parts: list[tuple[Array, Array, Array, Array]] = []

    def add(
        self,
        query_ids: NDArray[np.uint64],
        logits: NDArray[np.float32],
        labels: NDArray[np.float32],
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        """Add n samples: query_ids [n], logits and labels [n, T], weights [n] or None for ones."""
        self._keep(query_ids, logits, labels, np.empty(0, np.float32) if weights is None else weights)

    def encode(self) -> list[Array]:
        """Return query_ids, logits, labels and weights (size 0: ones) of all samples, for `merge_encoded`."""
        if not self._parts:
            none = np.empty((0, self.tasks), np.float32)
            return [np.empty(0, np.uint64), none, none, np.empty(0, np.float32)]
        return [np.concatenate(arrays) for arrays in zip(*self._parts, strict=True)]

    def merge_encoded(self, query_ids: Array, logits: Array, labels: Array, weights: Array) -> None:
        """Add the samples of another part; raises WireError if the arrays do not fit each other."""
        shape = (len(query_ids), self.tasks)
        if (logits.shape, labels.shape) != (shape, shape) or len(weights) not in (0, len(query_ids)):
            raise WireError(
                f"scores of {len(query_ids)} samples with query ids and {self.tasks} tasks have logits of shape "
                f"{logits.shape}, labels of shape {labels.shape} and {len(weights)} weights"
            )
        if len(query_ids):
            self._keep(query_ids, logits, labels, weights)

    def _keep(self, query_ids: Array, logits: Array, labels: Array, weights: Array) -> None:
        # Copies, since an array of a message may keep the memory of the whole message.
        self._parts.append((query_ids.copy(), logits.copy(), labels.copy(), weights.copy()))

    def gauc(self) -> list[float | None]:
        """Return, per task, the mean of the AUC of each query, weighted by the query's samples (their weights).

        Queries with labels of one class have no AUC and are left out; None if all are left out. Pairs of equal logits
        count half. This is the impression-weighted form of Zhu et al., "Optimized Cost per Click in Taobao Display
        Advertising" (KDD 2017), which DIN (KDD 2018) reports. A million samples take about 0.3 s on an idle core, and
        130 MB of memory meanwhile.
        """
        query_ids, logits, labels, weights = self.encode()
        if not len(query_ids):
            return [None] * self.tasks
        numbers = np.unique(query_ids, return_inverse=True)[1].astype(np.uint64)
        w = weights.astype(np.float64) if len(weights) else np.ones(len(query_ids))
        return [_gauc(numbers, logits[:, task], labels[:, task].astype(np.float64), w) for task in range(self.tasks)]


def _gauc(query_ids: Array, logits: Array, labels: Array, weights: Array) -> float | None:
    """Return the GAUC of one task of n > 0 samples, arrays [n]; query ids are numbers below 2**32."""
    # One key for query and logit, since numpy sorts plain integers several times faster than two keys.
    keys = query_ids << np.uint64(32) | rising(logits).astype(np.uint64)
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

"""Approximate search for the best items of each query, by a graph of near items (HNSW of faiss), and exact search.

Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using hierarchical navigable small world
graphs", arXiv 1603.09320.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import DataError, UserError
from persia_cli.retrieval.ranking import (
    USERS,
    Floats,
    Numbers,
    Pairs,
    best_items,
    items_of_block,
    retrieval_metrics,
    scores_of,
)

LINKS = 32
"""Neighbours of an item in the graph."""
TOGETHER = 64
"""Users that are searched for at a time."""
BUILD_EFFORT, MIN_EFFORT = 200, 128
"""Candidates that are remembered while an item is added, and at least for a query."""


@dataclass(frozen=True, slots=True)
class ApproximateMetrics:
    """The metrics of lists found by approximate search, and their comparison with exact search.

    `search_recall` has for each cut k the mean fraction of the exact first k that were found. Speeds are in queries per
    second, without the time to build the graph.
    """

    metrics: dict[str, float]
    search_recall: dict[str, float]
    build_s: float
    queries_per_s: float
    exact_queries_per_s: float


def require_faiss() -> None:
    """Raise UserError if the library is not installed."""
    if find_spec("faiss") is None:
        raise UserError("--approximate needs faiss, which is not installed: pip install 'persia-cli[retrieval]'")


class NearItems:
    """The graph of some items, by their vectors."""

    def __init__(self, items: Floats) -> None:
        import faiss

        self._index = faiss.IndexHNSWFlat(items.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = BUILD_EFFORT
        self._index.add(np.ascontiguousarray(items))

    def lists(self, users: Floats, hidden: Pairs, longest: int) -> Numbers:
        """Return the best items int64 [n, longest] of each user, best first, -1 after the last, without hidden ones."""
        # The search requests as many more as are hidden, so users with many of them are answered together.
        counts, items = np.bincount(hidden.queries, minlength=len(users)), self._index.ntotal
        numbers = np.empty((len(users), longest), np.int64)
        for block in np.array_split(np.argsort(counts, kind="stable"), -(-len(users) // TOGETHER)):
            depth = min(longest + int(counts[block].max()), items)
            self._index.hnsw.efSearch = max(MIN_EFFORT, 2 * depth)
            _, near = self._index.search(np.ascontiguousarray(users[block]), depth)
            numbers[block] = _first(near, *items_of_block(hidden, block), longest, items)
        return numbers


def search(users: Floats, items: Floats, relevant: Pairs, hidden: Pairs, cuts: Sequence[int]) -> ApproximateMetrics:
    """Search both ways for as many items as the largest cut, for each query of vectors [queries, width].

    Hidden items of a query are left out of the result; none is relevant.
    Raise DataError for vectors that are not finite.
    """
    if not (np.isfinite(users).all() and np.isfinite(items).all()):
        raise DataError("vectors of the model are not finite, so that --approximate cannot search; leave it out")
    began = time.perf_counter()
    graph = NearItems(items)
    build_s = time.perf_counter() - began
    longest = min(max(cuts), len(items))
    most = len(items) - np.bincount(hidden.queries, minlength=len(users))
    ranks, hits, near_s, exact_s = [], np.zeros((len(cuts), len(users))), 0.0, 0.0
    for block in np.split(np.arange(len(users)), range(USERS, len(users), USERS)):
        hidden_here, began = items_of_block(hidden, block), time.perf_counter()
        near = graph.lists(users[block], hidden_here, longest)
        near_s, began = near_s + time.perf_counter() - began, time.perf_counter()
        exact = best_items(users[block], items, hidden_here, longest)
        exact_s += time.perf_counter() - began
        listed, best = (scores_of(users[block], items, numbers) for numbers in (near, exact))
        for number, k in enumerate(cuts):
            hits[number, block] = _fraction(listed[:, :k], best, np.minimum(k, most[block]))
        wanted = relevant.part(block[0], block[-1] + 1)
        same = wanted.items[:, None] == near[wanted.queries - block[0]]
        ranks.append(np.where(same.any(axis=1), 1 + same.argmax(axis=1), len(items) + max(cuts) + 1))
    metrics = retrieval_metrics(np.concatenate(ranks), relevant, cuts)
    del metrics["mrr"]  # since lists end
    recall = {f"search_recall@{k}": float(listed.mean()) for k, listed in zip(cuts, hits, strict=True)}
    return ApproximateMetrics(metrics, recall, build_s, len(users) / near_s, len(users) / exact_s)


def _first(listed: Numbers, rows: Numbers, hidden: Numbers, longest: int, items: int) -> Numbers:
    """Return the first items int64 [n, longest] of each row of `found` that are not hidden there, -1 after the last."""
    numbers = np.arange(len(listed))[:, None] * items
    stays = (listed >= 0) & ~np.isin(numbers + listed, rows * items + hidden)
    ahead = np.argsort(~stays, axis=1, kind="stable")[:, :longest]
    return np.where(np.take_along_axis(stays, ahead, axis=1), np.take_along_axis(listed, ahead, axis=1), -1)


def _fraction(listed: Floats, best: Floats, most: Numbers) -> NDArray[np.float64]:
    """Return the fraction of each row's `most` best scores that are among its `own`; 1 if there are none.

    Equal scores are equally good, for any of their items.
    """
    last = np.take_along_axis(best, np.maximum(most - 1, 0)[:, None], axis=1)
    good = ((listed >= last) & (listed > -np.inf)).sum(axis=1)
    return np.where(most > 0, good / np.maximum(most, 1), 1.0)

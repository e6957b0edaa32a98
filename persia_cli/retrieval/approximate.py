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
from persia_cli.retrieval.ranking import CELLS, Floats, Numbers, Pairs, retrieval_metrics

LINKS = 32
"""Neighbours of an item in the graph."""
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


def search(users: Floats, items: Floats, relevant: Pairs, seen: Pairs, cuts: Sequence[int]) -> ApproximateMetrics:
    """Search both ways for as many items as the largest cut, for each query of vectors [queries, width].

    Raise DataError for vectors that are not finite.
    """
    # Seen items of a query are left out of the result, unless they are relevant, so the search requests as many more;
    # queries with many seen items are answered together.
    import faiss

    if not (np.isfinite(users).all() and np.isfinite(items).all()):
        raise DataError("vectors of the model are not finite, so that --approximate cannot search; leave it out")
    began = time.perf_counter()
    index = faiss.IndexHNSWFlat(items.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = BUILD_EFFORT
    index.add(np.ascontiguousarray(items))
    build_s = time.perf_counter() - began
    hidden = _without(seen, relevant, len(items))
    counts = np.bincount(hidden.queries, minlength=len(users))
    order = np.argsort(counts, kind="stable")
    ranks = np.full(len(relevant.queries), len(items) + max(cuts) + 1)
    hits, near_s, exact_s = np.zeros((len(cuts), len(users))), 0.0, 0.0
    step = max(1, CELLS // len(items))
    for start in range(0, len(users), step):
        block = order[start : start + step]
        longest = min(max(cuts), len(items))
        depth = min(longest + int(counts[block].max()), len(items))
        index.hnsw.efSearch = max(MIN_EFFORT, 2 * depth)
        rows, their_items = _of_block(hidden, block)
        began = time.perf_counter()
        _, found = index.search(np.ascontiguousarray(users[block]), depth)
        lists = _first(found, rows, their_items, longest, len(items))
        near_s += time.perf_counter() - began
        began = time.perf_counter()
        scores = users[block] @ items.T
        scores[rows, their_items] = -np.inf
        best = -np.sort(-np.partition(scores, len(items) - longest, axis=1)[:, len(items) - longest :], axis=1)
        exact_s += time.perf_counter() - began
        own = np.where(lists >= 0, np.take_along_axis(scores, np.maximum(lists, 0), axis=1), -np.inf)
        for number, k in enumerate(cuts):
            hits[number, block] = _fraction(own[:, :k], best, np.minimum(k, len(items) - counts[block]))
        _set_ranks(ranks, relevant, block, lists)
    metrics = {name: value for name, value in retrieval_metrics(ranks, relevant, cuts).items() if name != "mrr"}
    recall = {f"search_recall@{k}": float(found.mean()) for k, found in zip(cuts, hits, strict=True)}
    return ApproximateMetrics(metrics, recall, build_s, len(users) / near_s, len(users) / exact_s)


def _without(seen: Pairs, relevant: Pairs, items: int) -> Pairs:
    """Return the pairs that are seen and not relevant."""
    stays = ~np.isin(seen.queries * items + seen.items, relevant.queries * items + relevant.items)
    return Pairs(seen.queries[stays], seen.items[stays])


def _of_block(pairs: Pairs, block: Numbers) -> tuple[Numbers, Numbers]:
    """Return the place in the block, and the item, of each pair of its queries."""
    firsts, ends = (np.searchsorted(pairs.queries, block, side) for side in ("left", "right"))
    places = np.repeat(np.arange(len(block)), ends - firsts)
    parts = [pairs.items[first:end] for first, end in zip(firsts, ends, strict=True)]
    return places, np.concatenate(parts)


def _first(found: Numbers, rows: Numbers, hidden: Numbers, longest: int, items: int) -> Numbers:
    """Return the first items int64 [n, longest] of each row of `found` that are not hidden there, -1 after the last."""
    numbers = np.arange(len(found))[:, None] * items
    stays = (found >= 0) & ~np.isin(numbers + found, rows * items + hidden)
    ahead = np.argsort(~stays, axis=1, kind="stable")[:, :longest]
    return np.where(np.take_along_axis(stays, ahead, axis=1), np.take_along_axis(found, ahead, axis=1), -1)


def _fraction(own: Floats, best: Floats, most: Numbers) -> NDArray[np.float64]:
    """Return the fraction of each row's `most` best scores that are among its `own`; 1 if there are none.

    Equal scores are equally good, for any of their items.
    """
    last = np.take_along_axis(best, np.maximum(most - 1, 0)[:, None], axis=1)
    good = ((own >= last) & (own > -np.inf)).sum(axis=1)
    return np.where(most > 0, good / np.maximum(most, 1), 1.0)


def _set_ranks(ranks: Numbers, relevant: Pairs, block: Numbers, lists: Numbers) -> None:
    """Set the rank, from 1, of each relevant pair of the block whose item is in its query's list."""
    for query, listed in zip(block.tolist(), lists, strict=True):
        mine = slice(*np.searchsorted(relevant.queries, [query, query + 1]))
        same = relevant.items[mine, None] == listed
        ranks[mine] = np.where(same.any(axis=1), 1 + same.argmax(axis=1), ranks[mine])

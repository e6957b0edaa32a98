"""Retrieval metrics: the ranks of a query's relevant items among all items, by exact search in blocks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]
Ids = NDArray[np.uint64]
Scorer = Callable[[int, int], Floats]
"""Scores float32 [queries, items] of the queries [first, last)."""

CELLS = 2**24
"""Comparisons at a time, which bounds their memory."""
USERS, ITEMS = 1024, 4096
"""Users and items whose lists are searched at a time."""


class Pairs(NamedTuple):
    """Pairs of a query and an item, int64 [n] each, each pair once, ordered by query."""

    queries: Numbers
    items: Numbers

    def part(self, first: int, last: int) -> "Pairs":
        """Return those of the queries [first, last)."""
        chosen = slice(*np.searchsorted(self.queries, [first, last]))
        return Pairs(self.queries[chosen], self.items[chosen])


def distinct_pairs(queries: Numbers, items: Numbers) -> Pairs:
    """Return pairs, each once, in the order of queries and then items."""
    count = int(items.max(initial=0)) + 1
    return Pairs(*np.divmod(np.unique(queries * count + items), count))


def slots_of(known: Ids, ids: Ids) -> Numbers:
    """Return the place of each id among ascending ones, -1 for one that is not there."""
    places = np.searchsorted(known, ids)
    return np.where(np.append(known, 0)[places] == ids, places, -1) if known.size else np.full(ids.size, -1)


def items_of_block(pairs: Pairs, block: Numbers) -> Pairs:
    """Return the pairs of some queries, with the place in the block for the query."""
    firsts, ends = (np.searchsorted(pairs.queries, block, side) for side in ("left", "right"))
    places = np.repeat(np.arange(len(block)), ends - firsts)
    parts = [pairs.items[first:end] for first, end in zip(firsts, ends, strict=True)]
    return Pairs(places, np.concatenate(parts))


def ranks_of(scores: Scorer, relevant: Pairs, hidden: Pairs, queries: int, items: int) -> Numbers:
    """Return the rank, from 1, of each relevant pair's item among those that are not hidden from its query.

    Of equal scores the item with the lower number comes first. No relevant pair is hidden.
    """
    ranks = np.empty(len(relevant.queries), np.int64)
    done, numbers = 0, np.arange(items)
    step = max(1, CELLS // max(1, items))
    for first in range(0, queries, step):
        last = min(first + step, queries)
        block = scores(first, last)
        mine, left_out = relevant.part(first, last), hidden.part(first, last)
        wanted = block[mine.queries - first, mine.items]
        block[left_out.queries - first, left_out.items] = -np.inf
        for start in range(0, len(wanted), step):
            some = slice(start, start + step)
            rows, score = block[mine.queries[some] - first], wanted[some, None]
            ahead = (rows > score) | ((rows == score) & (numbers < mine.items[some, None]))
            ranks[done + start : done + start + len(rows)] = 1 + np.count_nonzero(ahead, axis=1)
        done += len(wanted)
    return ranks


def retrieval_metrics(ranks: Numbers, relevant: Pairs, cuts: Sequence[int]) -> dict[str, float]:
    """Return the mean over queries of Recall@k, NDCG@k and HR@k (hit rate) for each cut k, and of MRR.

    With R relevant items of a query, at the ranks r: recall is the number with r <= k, over R; NDCG is the sum of
    1 / log2(1 + r) over them, over that of the ranks 1 to min(k, R); the hit rate is 1 if there is any; MRR is 1 over
    the best rank, wherever that is. `ranks` are of the pairs `relevant`; there is at least one.
    """
    _, starts, counts = np.unique(relevant.queries, return_index=True, return_counts=True)
    best = np.minimum.reduceat(ranks, starts)
    metrics: dict[str, float] = {}
    for k in cuts:
        is_listed = ranks <= k
        gains = np.where(is_listed, 1.0 / np.log2(1.0 + ranks), 0.0)
        ideal = np.cumsum(1.0 / np.log2(1.0 + np.arange(1, k + 1)))[np.minimum(counts, k) - 1]
        metrics[f"recall@{k}"] = float(np.mean(np.add.reduceat(is_listed, starts, dtype=np.int64) / counts))
        metrics[f"ndcg@{k}"] = float(np.mean(np.add.reduceat(gains, starts) / ideal))
        metrics[f"hr@{k}"] = float(np.mean(best <= k))
    metrics["mrr"] = float(np.mean(1.0 / best))
    return metrics


def best_items(users: Floats, items: Floats, hidden: Pairs, top: int) -> Numbers:
    """Return the best items int64 [n, top] of each user, -1 after the last; of equal ones the lower number is first.

    Hidden items are left out. Items are scored in blocks, so memory does not grow with them.
    """
    numbers, scores = np.empty((len(users), 0), np.int64), np.empty((len(users), 0), np.float32)
    for first in range(0, len(items), ITEMS):
        block = users @ items[first : first + ITEMS].T
        is_here = (hidden.items >= first) & (hidden.items < first + ITEMS)
        block[hidden.queries[is_here], hidden.items[is_here] - first] = -np.inf
        block_numbers = np.broadcast_to(np.arange(first, first + block.shape[1]), block.shape)
        numbers, scores = np.concatenate([numbers, block_numbers], axis=1), np.concatenate([scores, block], axis=1)
        count = min(top, scores.shape[1])
        least = np.partition(scores, -count, axis=1)[:, -count, None]
        rows, columns = np.nonzero(scores >= least)
        # Within each row by descending scores; this order is stable, and of equal ones the lower number is first here.
        order = np.lexsort((-scores[rows, columns], rows))
        firsts = np.searchsorted(rows, np.arange(len(users)))
        chosen = columns[order[firsts[:, None] + np.arange(count)]]
        numbers, scores = np.take_along_axis(numbers, chosen, 1), np.take_along_axis(scores, chosen, 1)
    return np.where(scores > -np.inf, numbers, -1)


def scores_of(users: Floats, items: Floats, numbers: Numbers) -> Floats:
    """Return the score of each user's listed items [n, k], minus infinity for none (-1)."""
    step = max(1, CELLS // max(1, numbers.shape[1] * items.shape[1]))
    parts = (slice(first, first + step) for first in range(0, len(users), step))
    scores = np.concatenate([np.einsum("nw,nkw->nk", users[part], items[numbers[part]]) for part in parts])
    return np.where(numbers >= 0, scores, np.float32(-np.inf))

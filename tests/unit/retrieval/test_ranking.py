"""Ranks and metrics of retrieval against plain loops, torchmetrics, and an approximate search."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.errors import DataError, UserError
from persia_cli.retrieval import approximate, ranking
from persia_cli.retrieval.approximate import require_faiss, search
from persia_cli.retrieval.ranking import Pairs, best_items, distinct_pairs, ranks_of, retrieval_metrics


def listed(scores, query, seen):
    """The items of a query in their order: best score first, of equal ones the lower number."""
    hidden = {item for q, item in seen if q == query}
    items = [item for item in range(scores.shape[1]) if item not in hidden]
    return sorted(items, key=lambda item: (-scores[query, item], item))


def by_loops(scores, relevant, seen, k):
    sums = dict.fromkeys(("recall", "ndcg", "hr", "mrr"), 0.0)
    queries = sorted({query for query, _ in relevant})
    for query in queries:
        wanted = {item for q, item in relevant if q == query}
        order = listed(scores, query, seen)
        hits = [place for place, item in enumerate(order) if item in wanted]
        inside = [place for place in hits if place < k]
        sums["recall"] += len(inside) / len(wanted)
        gain = sum(1 / math.log2(place + 2) for place in inside)
        sums["ndcg"] += gain / sum(1 / math.log2(place + 2) for place in range(min(k, len(wanted))))
        sums["hr"] += bool(inside)
        sums["mrr"] += 1 / (hits[0] + 1)
    return {name: value / len(queries) for name, value in sums.items()}


def pairs_of(pairs):
    both = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return distinct_pairs(both[:, 0], both[:, 1])


PAIRS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=20)


@given(PAIRS.filter(bool), PAIRS, st.integers(0, 99), st.integers(1, 9), st.sampled_from([1, 9, 2**24]))
def test_any_ranking_has_the_metrics_of_the_loops(relevant, seen, seed, k, cells):
    seen = seen - relevant
    # Few values, so that many scores are equal.
    scores = np.random.default_rng(seed).integers(-2, 3, (5, 7)).astype(np.float32)
    before, ranking.CELLS = ranking.CELLS, cells
    try:
        wanted = pairs_of(relevant)
        ranks = ranks_of(lambda first, last: scores[first:last].copy(), wanted, pairs_of(seen), 5, 7)
    finally:
        ranking.CELLS = before
    found, expected = retrieval_metrics(ranks, wanted, [k]), by_loops(scores, relevant, seen, k)
    names = {"recall": f"recall@{k}", "ndcg": f"ndcg@{k}", "hr": f"hr@{k}", "mrr": "mrr"}
    assert {name: found[key] for name, key in names.items()} == pytest.approx(expected, rel=1e-12)


def test_metrics_are_those_of_torchmetrics():
    retrieval = pytest.importorskip("torchmetrics.retrieval")
    import torch

    # Torchmetrics treats no item with a score of 0 and below as relevant in its reciprocal rank.
    scores = np.random.default_rng(0).random((30, 50), np.float32) + 1
    relevant = {(q, int(item)) for q in range(30) for item in np.random.default_rng(q + 1).integers(0, 50, 4)}
    wanted = pairs_of(relevant)
    none = Pairs(*np.empty((2, 0), np.int64))
    ranks = ranks_of(lambda first, last: scores[first:last].copy(), wanted, none, 30, 50)
    found = retrieval_metrics(ranks, wanted, [10])
    target = torch.zeros(30, 50, dtype=torch.int64)
    target[wanted.queries, wanted.items] = 1
    query = torch.arange(30).unsqueeze(1).expand(30, 50).flatten()
    kinds = {
        "recall@10": retrieval.RetrievalRecall(top_k=10),
        "ndcg@10": retrieval.RetrievalNormalizedDCG(top_k=10),
        "hr@10": retrieval.RetrievalHitRate(top_k=10),
        "mrr": retrieval.RetrievalMRR(),
    }
    for name, kind in kinds.items():
        theirs = kind(torch.from_numpy(scores).flatten(), target.flatten(), indexes=query)
        assert found[name] == pytest.approx(float(theirs), rel=1e-5), name


QUERIES, ITEMS, WIDTH = 40, 300, 8
CUTS = [1, 5, 400]


def made_up() -> tuple[np.ndarray, np.ndarray, set[tuple[int, int]], set[tuple[int, int]]]:
    draw = np.random.default_rng(4)
    users, items = draw.normal(size=(QUERIES, WIDTH)), draw.normal(size=(ITEMS, WIDTH))
    relevant = {(q, int(item)) for q in range(QUERIES) for item in draw.integers(0, ITEMS, 3)}
    seen = {(q, int(item)) for q in range(QUERIES) for item in draw.integers(0, ITEMS, q)}
    seen |= {(3, item) for item in range(ITEMS)}  # a query that has seen all
    return users.astype(np.float32), items.astype(np.float32), relevant, seen - relevant


@pytest.mark.parametrize("users_at_once", [1, 7, 1024])
def test_an_exhaustive_search_has_the_metrics_of_the_loops(users_at_once, monkeypatch):
    monkeypatch.setattr(approximate, "USERS", users_at_once)
    monkeypatch.setattr(approximate, "MIN_EFFORT", 2 * ITEMS)
    users, items, relevant, seen = made_up()
    found = search(users, items, pairs_of(relevant), pairs_of(seen), CUTS)
    assert found.search_recall == {f"search_recall@{k}": 1.0 for k in CUTS}
    for k in CUTS:
        expected = by_loops(users @ items.T, relevant, seen, k)
        for name in ("recall", "ndcg", "hr"):
            assert found.metrics[f"{name}@{k}"] == pytest.approx(expected[name], rel=1e-12)
    assert "mrr" not in found.metrics  # since lists end
    assert min(found.queries_per_s, found.exact_queries_per_s) > 0


def test_missed_items_count_as_missed(monkeypatch):
    monkeypatch.setattr(approximate, "LINKS", 2)
    monkeypatch.setattr(approximate, "BUILD_EFFORT", 1)
    monkeypatch.setattr(approximate, "MIN_EFFORT", 1)
    draw = np.random.default_rng(1)
    users, items = (draw.normal(size=(n, 32)).astype(np.float32) for n in (50, 5000))
    best = {(q, int(item)) for q, item in enumerate((users @ items.T).argmax(axis=1))}
    none = Pairs(*np.empty((2, 0), np.int64))
    found = search(users, items, pairs_of(best), none, [1])
    assert found.search_recall["search_recall@1"] == found.metrics["recall@1"] < 0.9


def test_impossible_settings_are_refused_in_a_sentence(monkeypatch):
    users, items, relevant, seen = made_up()
    items[5, 2] = np.nan
    with pytest.raises(DataError, match="vectors of the model are not finite"):
        search(users, items, pairs_of(relevant), pairs_of(seen), CUTS)
    monkeypatch.setattr(approximate, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--approximate needs faiss.*pip install 'persia-cli\[retrieval\]'"):
        require_faiss()


@given(PAIRS, st.integers(0, 99), st.integers(1, 9), st.sampled_from([1, 3, 2048]))
def test_best_items_are_those_of_the_loops(hidden, seed, top, block):
    draw = np.random.default_rng(seed)
    users, items = (draw.integers(-1, 2, (n, 2)).astype(np.float32) for n in (5, 7))
    before, ranking.ITEMS = ranking.ITEMS, block
    try:
        found = best_items(users, items, pairs_of(hidden), top)
    finally:
        ranking.ITEMS = before
    for query, mine in enumerate(found.tolist()):
        expected = listed(users @ items.T, query, hidden)[:top]
        assert mine == expected + [-1] * (found.shape[1] - len(expected))

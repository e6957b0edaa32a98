"""Approximate search against the loops of the exact one."""

import numpy as np
import pytest

from persia_cli.errors import DataError, UserError
from persia_cli.retrieval import approximate
from persia_cli.retrieval.approximate import require_faiss, search
from persia_cli.retrieval.ranking import Pairs
from tests.unit.retrieval.test_ranking import by_loops, pairs_of

QUERIES, ITEMS, WIDTH = 40, 300, 8
CUTS = [1, 5, 400]


def made_up() -> tuple[np.ndarray, np.ndarray, set[tuple[int, int]], set[tuple[int, int]]]:
    draw = np.random.default_rng(4)
    users, items = draw.normal(size=(QUERIES, WIDTH)), draw.normal(size=(ITEMS, WIDTH))
    relevant = {(q, int(item)) for q in range(QUERIES) for item in draw.integers(0, ITEMS, 3)}
    seen = {(q, int(item)) for q in range(QUERIES) for item in draw.integers(0, ITEMS, q)}
    seen |= {(3, item) for item in range(ITEMS)}  # a query that has seen all
    return users.astype(np.float32), items.astype(np.float32), relevant, seen


@pytest.mark.parametrize("cells", [1, 7 * ITEMS, 2**24])
def test_an_exhaustive_search_has_the_metrics_of_the_loops(cells, monkeypatch):
    monkeypatch.setattr(approximate, "CELLS", cells)
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

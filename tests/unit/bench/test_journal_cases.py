"""The price of the journal is measured for every optimizer, on rows in the cache and from memory."""

from itertools import product
from typing import get_args

from persia_cli.store.layout import OptimizerKind
from scripts.bench import journal_cases
from scripts.bench.alternate import QUICK


def test_every_optimizer_is_measured_with_and_without_a_journal() -> None:
    results = list(journal_cases.journal(QUICK))
    places = product(get_args(OptimizerKind), ("in the cache", "from memory"))
    assert [each.name for each in results] == [f"journal, {kind}, dim 16, {place}" for kind, place in places]
    assert all(0.1 < each.sides[0].ratios[journal_cases.BARE] < 3 for each in results)

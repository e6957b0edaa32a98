"""Staleness as the servers' watermarks tell it: a histogram of each rank, within the bound, and used up to it."""

from pathlib import Path

import pytest

from tests.support.jobs import staleness, train
from tests.support.small import STEPS, WORDS

RANKS = ["cluster=local", "cluster.embedding_servers=2", "cluster.embedding_workers=2"]


@pytest.mark.parametrize(("ranks", "bound"), [(2, 3), pytest.param(4, 8, marks=pytest.mark.slow)])
def test_hybrid_keeps_its_bound_on_every_rank(ranks: int, bound: int, tmp_path: Path) -> None:
    words = [*WORDS, *RANKS, f"cluster.nn_workers={ranks}", "mode=hybrid", f"mode.staleness={bound}"]
    measured = staleness(train(words, tmp_path / "run"))
    assert len(measured) == ranks
    for rank in measured:
        assert sum(rank.values()) == STEPS
        assert rank[1] >= 1  # the first step's
        assert set(rank) <= set(range(1, bound + 1))
        assert max(rank) == bound


@pytest.mark.slow
def test_sync_reads_what_the_step_before_wrote(tmp_path: Path) -> None:
    assert staleness(train([*WORDS, *RANKS, "cluster.nn_workers=2"], tmp_path / "run")) == [{1: STEPS}] * 2

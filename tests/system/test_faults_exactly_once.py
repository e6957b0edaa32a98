"""Exactly once: connections are cut at random moments, and nothing but the time it takes is different."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult
from tests.support.jobs import losses, plan
from tests.support.small import STEPS, WORDS, counted, figures, replicas
from tests.support.threads import ThreadJob

CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2", "cluster.data_loaders=2"]


def train_and_cut(words: list[str], run_dir: Path, seed: int) -> tuple[JobResult, Mapping[str, int]]:
    """Train over tcp while the connections to one replica after the other break; the cuts of each are counted."""
    moments = random.Random(seed)
    with ThreadJob(plan([*words, *CLUSTER], run_dir)) as job:
        while job.goes_on(moments.uniform(0.01, 0.06)):
            moments.choice(list(job.proxies.values())).cut()
        return job.result(), {name: proxy.cuts for name, proxy in job.proxies.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_sync_run_has_the_same_losses_to_the_bit(undisturbed, tmp_path, seed):
    result, cuts = train_and_cut(WORDS, tmp_path / "run", seed)

    assert min(cuts.values()) >= 10
    for sender, receiver in [
        ("data-loader", "embedding-worker"),
        ("nn-worker", "embedding-worker"),
        ("embedding-worker", "embedding-server"),
        ("data-loader", "coordinator"),
    ]:
        assert counted(result, sender, "resent") > 0
        assert counted(result, receiver, "repeated") > 0, "no request reached its receiver twice"
    assert len(losses(result)) == STEPS
    assert losses(result) == losses(undisturbed)
    assert figures(result) == figures(undisturbed)


def test_in_hybrid_mode_every_server_applies_every_update_once(tmp_path):
    result, cuts = train_and_cut([*WORDS, "mode=hybrid", "mode.staleness=4"], tmp_path / "run", seed=7)

    assert sum(cuts.values()) > 100
    servers = replicas(result, "embedding-server")
    assert [server["updates"]["applied"] for server in servers] == [STEPS, STEPS]
    assert counted(result, "embedding-worker", "resent") > 0
    assert counted(result, "embedding-server", "repeated") > 0

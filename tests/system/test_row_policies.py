"""Policies of rows in whole jobs: reproducible, resumed with their counts, and reported."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import losses, train
from tests.system.test_resume import WORDS, lines, persia, training

TWICE = ["embedding.admission={min_count: 2}", "embedding.capacity=200000"]
FULL = ["embedding.capacity=800", "embedding.num_partitions=4", "embedding.expire_after=8"]


def counted(result: JobResult, name: str) -> int:
    """A counter of all tables together, at the end."""
    tables = next(event for event in result.events if event["event"] == "tables")["tables"]
    return sum(int(table[name]) for table in tables.values())


@pytest.fixture(scope="module")
def straight(trained: Callable[..., JobResult]) -> JobResult:
    """A run that gives ids a row at their second sighting, undisturbed."""
    return trained(*WORDS, *TWICE)


def test_a_resumed_run_goes_on_with_the_counts(straight: JobResult, tmp_path: Path) -> None:
    """A sighting before the checkpoint counts after it, so the same ids get their rows at the same steps."""
    run_dir = tmp_path / "run"
    shutil.copytree(straight.run_dir, run_dir)
    for step in (50, 60):
        shutil.rmtree(checkpoint_folder(run_dir / CHECKPOINTS, step))
    assert list((run_dir / CHECKPOINTS / "step-25" / "frequencies").iterdir())
    ended = persia("resume", run_dir, "cluster.embedding_servers=3", "train.steps=60")
    assert ended.exit_code == 0, ended.output
    assert training(run_dir) == training(straight.run_dir)
    assert lines(run_dir)[-1] == lines(straight.run_dir)[-1]
    # Each id comes in several epochs, and was left out once.
    assert counted(straight, "not_admitted") == counted(straight, "admitted") > 0


def test_full_tables_give_the_same_bits_on_any_number_of_servers(tmp_path: Path) -> None:
    words = [*WORDS, *FULL, "embedding.dtype=int8", "optimizer=rowwise_adagrad"]
    one, three = (train([*words, f"cluster.embedding_servers={n}"], tmp_path / str(n)) for n in (1, 3))
    assert losses(one) == losses(three)
    assert_same_model(*(newest_checkpoint(each.run_dir / CHECKPOINTS) for each in (one, three)))
    for name in ("refused", "evicted", "expired"):
        assert counted(one, name) == counted(three, name)
    assert counted(one, "refused") > 0
    assert counted(one, "evicted") >= counted(one, "expired") > 0

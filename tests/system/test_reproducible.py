"""The same seed gives the same bits, whatever the number of servers, workers and loaders; staleness keeps its bound."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persia_cli.engines.job import JobResult
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import CRITEO_FFNN, losses, staleness, train

pytestmark = pytest.mark.smoke

QUALITY = ("loss", "auc", "log_loss", "ne", "calibration")
TABLES = ("rows", "hit_rate", "look_up_hit_rate", "evicted")


@pytest.fixture(scope="module")
def words(criteo_rows: Path) -> list[str]:
    """Arguments of a synchronous job on real rows, with batch normalisation and dropout."""
    style = ["model.norm=batch", "model.dropout=0.2"]
    size = ["train.steps=40", "train.batch_size=128", "train.log_every_steps=1"]
    return [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "cluster=embedded", "mode=sync", *style, *size]


@pytest.fixture(scope="module")
def result(words: list[str], trained: Callable[..., JobResult]) -> JobResult:
    """The result of the job with one replica of each role."""
    return trained(*words)


def figures(result: JobResult) -> list[dict[str, Any]]:
    """Return every metric that depends on samples and weights alone."""
    return [{key: line[key] for key in ("step", "samples", "split", *QUALITY, *TABLES)} for line in result.metrics]


@pytest.mark.parametrize(
    "deployment",
    [
        [],
        ["cluster.embedding_servers=3", "cluster.embedding_workers=2", "cluster.data_loaders=3"],
    ],
    ids=["again", "all"],
)
def test_sync_has_the_same_bits(deployment: list[str], words: list[str], result: JobResult, tmp_path: Path) -> None:
    other = train([*words, *deployment], tmp_path / "run")
    assert len(losses(other)) == 40
    assert figures(other) == figures(result)
    assert_same_model(newest_checkpoint(other.run_dir / CHECKPOINTS), newest_checkpoint(result.run_dir / CHECKPOINTS))


def test_evaluating_and_saving_in_between_changes_nothing(words: list[str], result: JobResult, tmp_path: Path) -> None:
    other = train([*words, "eval.every_steps=15", "checkpoint.every_steps=9"], tmp_path / "run")
    assert [line["step"] for line in other.metrics if line["split"] == "eval"] == [15, 30, 40]
    assert losses(other) == losses(result)
    assert figures(other)[-1] == figures(result)[-1]
    assert_same_model(newest_checkpoint(other.run_dir / CHECKPOINTS), newest_checkpoint(result.run_dir / CHECKPOINTS))


def test_hybrid_with_one_step_in_flight_is_sync(words: list[str], result: JobResult, tmp_path: Path) -> None:
    other = train([*words, "mode=hybrid", "mode.staleness=1", "cluster.embedding_servers=2"], tmp_path / "run")
    assert figures(other) == figures(result)
    assert_same_model(newest_checkpoint(other.run_dir / CHECKPOINTS), newest_checkpoint(result.run_dir / CHECKPOINTS))


def test_sync_is_never_stale(result: JobResult) -> None:
    assert staleness(result) == [{1: 40}]

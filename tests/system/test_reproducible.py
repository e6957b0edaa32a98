"""The same seed gives the same bits, whatever the number of servers, workers and loaders; staleness keeps its bound."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from persia_cli.engines.job import JobResult
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import CRITEO_FFNN, evaluation, losses, staleness, train

pytestmark = pytest.mark.smoke

QUALITY = ("loss", "auc", "log_loss", "ne", "calibration")
TABLES = ("rows", "hit_rate", "look_up_hit_rate", "evicted")


@pytest.fixture(scope="module")
def words(criteo_rows: Path) -> list[str]:
    """Arguments of a synchronous job on real rows."""
    size = ["train.steps=40", "train.batch_size=128", "train.log_every_steps=1"]
    return [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "cluster=embedded", "mode=sync", *size]


@pytest.fixture(scope="module")
def result(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """The result of the job with one replica of each role."""
    return train(words, tmp_path_factory.mktemp("one") / "run")


def figures(result: JobResult) -> list[dict[str, Any]]:
    """Return every metric that depends on samples and weights alone."""
    return [{key: line[key] for key in ("step", "samples", "split", *QUALITY, *TABLES)} for line in result.metrics]


@pytest.mark.parametrize(
    "deployment",
    [
        [],
        ["cluster.embedding_servers=3"],
        ["cluster.embedding_workers=2"],
        ["cluster.data_loaders=2"],
        ["cluster.embedding_servers=2", "cluster.embedding_workers=3", "cluster.data_loaders=3"],
    ],
    ids=["again", "servers", "workers", "loaders", "all"],
)
def test_sync_has_the_same_bits(deployment: list[str], words: list[str], result: JobResult, tmp_path: Path) -> None:
    other = train([*words, *deployment], tmp_path / "run")
    assert len(losses(other)) == 40
    assert figures(other) == figures(result)
    assert_same_model(newest_checkpoint(other.run_dir / CHECKPOINTS), newest_checkpoint(result.run_dir / CHECKPOINTS))


def test_the_last_line_has_the_totals_of_tables(result: JobResult) -> None:
    counters = next(event for event in result.events if event["event"] == "tables")["tables"].values()
    rows, hits, misses, ids, known, reads, reads_known = (
        sum(table[name] for table in counters)
        for name in ("rows", "hits", "misses", "look_ups", "look_ups_known", "reads", "reads_known")
    )
    line = evaluation(result)
    assert 0 < reads_known < reads
    assert line["unknown"] == pytest.approx(1 - reads_known / reads, abs=1e-6)
    assert (line["rows"], line["hit_rate"]) == (rows, pytest.approx(hits / (hits + misses), abs=1e-6))
    assert line["look_up_hit_rate"] == pytest.approx(known / ids, abs=1e-6)


def test_evaluating_and_saving_in_between_changes_nothing(words: list[str], result: JobResult, tmp_path: Path) -> None:
    other = train([*words, "eval.every_steps=15", "checkpoint.every_steps=9"], tmp_path / "run")
    assert [line["step"] for line in other.metrics if line["split"] == "eval"] == [15, 30, 40]
    assert losses(other) == losses(result)
    assert figures(other)[-1] == figures(result)[-1]
    assert_same_model(newest_checkpoint(other.run_dir / CHECKPOINTS), newest_checkpoint(result.run_dir / CHECKPOINTS))


def test_another_seed_has_other_bits(words: list[str], result: JobResult, tmp_path: Path) -> None:
    other = train([*words, "seed=1"], tmp_path / "run")
    assert not set(losses(other)) & set(losses(result))


def test_hybrid_with_one_step_in_flight_is_sync(words: list[str], result: JobResult, tmp_path: Path) -> None:
    other = train([*words, "mode=hybrid", "mode.staleness=1", "cluster.embedding_servers=2"], tmp_path / "run")
    assert figures(other) == figures(result)
    assert_same_model(newest_checkpoint(other.run_dir / CHECKPOINTS), newest_checkpoint(result.run_dir / CHECKPOINTS))


def test_sync_is_never_stale(result: JobResult) -> None:
    assert staleness(result) == [{1: 40}]


@pytest.mark.parametrize("bound", [2, 4])
def test_hybrid_staleness_keeps_its_bound(bound: int, words: list[str], tmp_path: Path) -> None:
    deployment = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
    result = train([*words, "mode=hybrid", f"mode.staleness={bound}", *deployment], tmp_path / "run")
    (measured,) = staleness(result)
    assert sum(measured.values()) == 40
    assert min(measured) >= 1
    assert 1 < max(measured) <= bound
    assert np.isfinite(evaluation(result)["auc"])

"""The same configuration gives the same bits in threads, in processes, and with every role started by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import CRITEO_FFNN, evaluation, losses, train
from tests.support.one_by_one import by_hand, end

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def words(criteo_rows: Path) -> list[str]:
    """Arguments of a synchronous job on real rows, with batch normalisation and dropout, over several replicas."""
    style = ["model.norm=batch", "model.dropout=0.2"]
    size = ["train.steps=40", "train.batch_size=128", "train.log_every_steps=1"]
    replicas = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
    return [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "mode=sync", *style, *size, *replicas]


@pytest.fixture(scope="module")
def embedded(words: list[str], trained: Callable[..., JobResult]) -> JobResult:
    """The result of the job in threads of one process."""
    return trained(*words, "cluster=embedded")


@pytest.mark.parametrize("shared_memory", ["true", "false"])
def test_processes_compute_what_threads_do(
    words: list[str], embedded: JobResult, tmp_path: Path, shared_memory: str
) -> None:
    in_processes = [*words, "cluster=local", f"cluster.shared_memory={shared_memory}"]
    assert_same_outcome(train(in_processes, tmp_path / "run"), embedded)


def test_roles_started_by_hand_compute_what_threads_do(words: list[str], embedded: JobResult, tmp_path: Path) -> None:
    with by_hand([*words, "cluster=local"], tmp_path / "run") as started:
        assert not any(end(started, within_s=150.0).values())
    assert_same_outcome(result_of(tmp_path / "run"), embedded)


def assert_same_outcome(result: JobResult, other: JobResult) -> None:
    """Require the same losses, the same evaluation and the same saved model, to the bit."""
    assert len(losses(result)) == 40
    assert losses(result) == losses(other)
    for figure in ("auc", "log_loss", "ne", "calibration"):
        assert evaluation(result)[figure] == evaluation(other)[figure]
    assert_same_model(newest_checkpoint(result.run_dir / CHECKPOINTS), newest_checkpoint(other.run_dir / CHECKPOINTS))

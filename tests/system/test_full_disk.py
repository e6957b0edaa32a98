"""A disk that takes no more ends a job with one sentence that names the file, and what is there stays readable."""

from pathlib import Path

import pytest

from persia_cli.errors import UserError
from persia_cli.launch.job import prepare_run_dir
from persia_cli.observe.history import read_history
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.manifest import CHECKPOINTS
from tests.support.full_disk import leave_free, small_disk
from tests.support.jobs import plan, train
from tests.support.small import WORDS

DISK = 2 * 2**20
BIG_ROWS = ["model.dim=64", "dataset.generator.cardinalities=[9000, 9000]", "embedding.capacity=16384"]
"""Rows of more than a MiB."""


def test_a_run_directory_that_cannot_be_made_can_be_made_later() -> None:
    with small_disk(2**16) as disk:
        filler = leave_free(disk, 0)
        job = plan([*WORDS, "cluster=embedded"], disk / "run")
        with pytest.raises(UserError, match=rf"disk full: cannot write {disk}/run"):
            prepare_run_dir(job)
        filler.unlink()
        prepare_run_dir(job)


@pytest.mark.parametrize("cluster", ["embedded", "local"])
def test_while_metrics_are_written(cluster: str) -> None:
    with small_disk(DISK) as disk:
        leave_free(disk, 120_000)
        with pytest.raises(UserError) as ended:
            train([*WORDS, f"cluster={cluster}"], disk / "run")
        assert_one_sentence(ended.value, disk)
        lines = read_journal(disk / "run" / METRICS)
        assert lines
        assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))


@pytest.mark.parametrize("cluster", ["embedded", "local"])
def test_while_a_checkpoint_is_written(cluster: str) -> None:
    with small_disk(DISK) as disk:
        leave_free(disk, 400_000)
        with pytest.raises(UserError) as ended:
            train([*WORDS, f"cluster={cluster}", *BIG_ROWS, "train.steps=100"], disk / "run")
        assert_one_sentence(ended.value, disk / "run" / CHECKPOINTS)
        outcome = read_history(disk / "run").outcome(0.0)
        assert (outcome.state, outcome.text) == ("failed", str(ended.value))
        assert list((disk / "run" / CHECKPOINTS).iterdir()) == []


def assert_one_sentence(error: UserError, place: Path) -> None:
    text = str(error)
    assert f"disk full: cannot write {place}" in text
    assert "free space or choose another place" in text
    assert len(text.splitlines()) == 1

"""A row that cannot be read ends a training with all that was trained before it saved; a resumed run goes on there."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from persia_cli.errors import PersiaError
from persia_cli.main import app
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train

pytestmark = pytest.mark.timeout(300)

ROWS, BATCH, GROUP = 640, 32, 64
STEPS = ROWS // BATCH
BAD = 500
"""The row that cannot be read; its row group is read as a whole, before its first step."""
BEFORE = BAD // GROUP * GROUP // BATCH
"""Steps that are trained before it."""


def write(path: Path, rows: int, *bad: int) -> None:
    """Write samples, of which these have no number."""
    draw = np.random.default_rng(rows)
    x, u = draw.normal(size=rows), draw.integers(0, 50, rows)
    y = (draw.random(rows) < np.where(u % 2, 0.8, 0.2)).astype(np.int64)
    x[list(bad)] = np.nan
    table = pa.table({"u": u, "x": x, "y": y})
    pq.write_table(table, path, row_group_size=GROUP, use_dictionary=False, compression="none")


def words_of(folder: Path, *words: str) -> list[str]:
    dataset: dict[str, Any] = {"kind": "parquet", "path": str(folder), "labels": ["y"], "sparse": ["u"], "dense": ["x"]}
    dataset["split"] = {"kind": "files", "train": ["train.parquet"], "eval": ["eval.parquet"]}
    (folder / "rows.yaml").write_text(json.dumps({**dataset, "shuffle": False}))
    return [
        f"dataset={folder / 'rows.yaml'}",
        *("model.dim=4", "model.hidden=[8]", "embedding.memory=16MiB", "train.epochs=1", f"train.batch_size={BATCH}"),
        *("train.log_every_steps=1", "checkpoint.best_by=null", *words),
    ]


def ended(words: Sequence[str], run_dir: Path) -> str:
    """Train to the row that cannot be read; return the error."""
    with pytest.raises(PersiaError) as failed:
        train([*words], run_dir)
    assert failed.value.exit_code == 2
    return str(failed.value)


def resume_corrected(run_dir: Path) -> None:
    """Resume a run after its data was corrected, which the user confirms."""
    refused = CliRunner().invoke(app, ["resume", str(run_dir)])
    (accepted,) = re.findall(r"dataset\.accept_changed=\w+", str(refused.exception))
    resumed = CliRunner().invoke(app, ["resume", str(run_dir), accepted])
    assert resumed.exit_code == 0, resumed.output


def lines(run_dir: Path, split: str) -> list[dict[str, Any]]:
    return [line for line in read_journal(run_dir / METRICS) if line["split"] == split]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["cluster=embedded", "mode=sync"], id="sync"),
        pytest.param(["cluster=embedded", "mode=hybrid", "cluster.data_loaders=2"], id="hybrid"),
        pytest.param(["cluster=local", "mode=async", "cluster.nn_workers=2", "cluster.data_loaders=2"], id="async"),
        pytest.param(["cluster=local", "mode=hybrid", "cluster.nn_workers=2", "cluster.data_loaders=2"], id="ranks"),
    ],
)
def test_what_was_trained_before_it_is_saved(words: list[str], tmp_path: Path) -> None:
    run_dir, straight = tmp_path / "run", tmp_path / "straight"
    write(tmp_path / "eval.parquet", 96)
    write(tmp_path / "train.parquet", ROWS, BAD)
    error = ended(words_of(tmp_path, *words), run_dir)
    assert "column x" in error
    assert f"persia resume {run_dir}" in error
    assert finished_steps(run_dir / CHECKPOINTS) == [BEFORE]
    write(tmp_path / "train.parquet", ROWS)
    resume_corrected(run_dir)
    assert [line["samples"] for line in lines(run_dir, "train")][-1] == ROWS
    assert len(lines(run_dir, "eval")) == 1
    if "mode=sync" in words:
        train(words_of(tmp_path, *words), straight)
        assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), newest_checkpoint(straight / CHECKPOINTS))


@pytest.mark.parametrize("every", ["null", "8"])
def test_a_row_of_an_evaluation_costs_no_training(every: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    write(tmp_path / "train.parquet", ROWS)
    write(tmp_path / "eval.parquet", ROWS, BAD)  # the plan reads the first 256
    error = ended(words_of(tmp_path, "cluster=embedded", f"eval.every_steps={every}"), run_dir)
    step = STEPS if every == "null" else int(every)
    assert finished_steps(run_dir / CHECKPOINTS) == [step]
    assert f"persia resume {run_dir}" in error
    write(tmp_path / "eval.parquet", ROWS)
    resume_corrected(run_dir)
    assert [line["step"] for line in lines(run_dir, "eval")] == ([STEPS] if every == "null" else [8, 16, STEPS])


def test_a_job_with_nothing_trained_names_no_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "eval.parquet", 96)
    write(tmp_path / "train.parquet", ROWS, 3)
    assert "persia resume" not in ended(words_of(tmp_path, "cluster=embedded"), tmp_path / "run")


@pytest.mark.parametrize("words", [["cluster=embedded"], ["cluster=local", "cluster.nn_workers=2"]])
def test_rows_that_may_be_left_out_count_once(words: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    write(tmp_path / "train.parquet", ROWS, BAD, BAD + 90)
    write(tmp_path / "eval.parquet", 96, 5)
    words = words_of(tmp_path, *words, "train.epochs=2", "eval.every_steps=10", "cluster.data_loaders=2")
    train([*words, "dataset.max_bad_rows=3"], run_dir)
    assert [event["rows"] for event in read_journal(run_dir / EVENTS) if event["event"] == "bad_rows"] == [1, 2, 3]
    assert lines(run_dir, "eval")[-1]["bad_rows"] == 3
    assert [line["samples"] for line in lines(run_dir, "train")][-1] == 2 * ROWS
    if "cluster=embedded" in words:
        error = ended([*words, "dataset.max_bad_rows=2"], tmp_path / "other")
        assert "dataset.max_bad_rows=2" in error
        resumed = CliRunner().invoke(app, ["resume", str(tmp_path / "other"), "dataset.max_bad_rows=3"])
        assert resumed.exit_code == 0, resumed.output

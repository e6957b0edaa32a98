"""Phases of a job between steps: evaluate and save, refuse rows beyond its memory, inform the user."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.engines.job import JobResult
from persia_cli.errors import UserError
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps, read_manifest
from persia_cli.store.checkpoints.retention import choose_checkpoint
from tests.support.jobs import train

SMALL = (
    "conf=synthetic",
    "cluster=embedded",
    "model.hidden=[16]",
    "model.dim=4",
    "dataset.generator.train_rows=1000",
    "dataset.generator.eval_rows=300",
    "train.batch_size=64",
)
STEPS = 16
"""Of 64 samples, the last of 40."""


def events(result: JobResult, kind: str) -> list[dict[str, Any]]:
    """The events of one kind, in order."""
    return [event for event in result.events if event["event"] == kind]


def test_evaluation_and_checkpoints_on_the_way(tmp_path: Path) -> None:
    every = ["eval.every_steps=6", "checkpoint={every_steps: 4, keep: null}", "train.log_every_steps=5"]
    result = train([*SMALL, *every], tmp_path / "run")
    lines = [(line["split"], line["step"], line["samples"]) for line in result.metrics]
    trained = [("train", step, min(64 * step, 1000)) for step in (4, 5, 6, 8, 10, 12, 15, STEPS)]
    evaluated = [("eval", step, min(64 * step, 1000)) for step in (6, 12, STEPS)]
    assert lines == sorted([*trained, *evaluated], key=lambda line: (line[1], line[0] == "eval"))
    assert all(line["eval_samples"] == 300 for line in result.metrics if line["split"] == "eval")
    saved = [read_manifest(Path(event["path"])) for event in events(result, "saved")]
    assert [(manifest.step, manifest.samples) for manifest in saved] == [(4, 256), (8, 512), (12, 768), (16, 1000)]
    phases = [event["phase"] for event in events(result, "phase")]
    assert phases[-4:] == ["training", "saving", "evaluating", "done"]


def test_a_batch_that_needs_too_many_rows_reports_ids_without_one(tmp_path: Path) -> None:
    result = train([*SMALL, "embedding.capacity=160", "embedding.when_full=evict_lru"], tmp_path / "run")
    [tables] = [event["tables"] for event in events(result, "tables")]
    # Each step uses more rows than that at once: also the slots meant to stay empty get taken.
    assert 160 <= sum(table["rows"] for table in tables.values()) <= 172
    full = [name for name, table in tables.items() if table["refused"]]
    assert full
    assert all(tables[name]["gradients_missing"] for name in full)
    (warning,) = [event["text"] for event in events(result, "warning")]
    assert re.match(r"the shared memory of 16 tables \(feature_0, ", warning)
    assert warning.endswith("raise embedding.capacity")
    assert result.metrics[-1]["split"] == "eval"


def test_training_ends_early_and_keeps_the_best(tmp_path: Path) -> None:
    words = [
        *SMALL,
        "dataset.generator.signal=3",
        "train.stop_early={metric: auc, patience: 2, min_delta: 0.9}",
        "eval.every_steps=2",
        "checkpoint.best_by=log_loss",
        "checkpoint.every_steps=3",
        "checkpoint.keep=1",
        "mode=sync",
    ]
    result = train(words, tmp_path / "run")
    losses = {line["step"]: line["log_loss"] for line in result.metrics if line["split"] == "eval"}
    assert list(losses) == [2, 4, 6], "the first is the best by auc, two others were no better"
    assert result.metrics[-1]["split"] == "eval"
    [stopped] = events(result, "stopped_early")
    assert stopped["step"] == 6
    assert stopped["text"].startswith("training ends early, at step 6: auc has not improved by more than 0.9 over")
    best = min(losses, key=lambda step: losses[step])
    last = events(result, "best")[-1]
    assert (last["step"], last["metric"], last["value"]) == (best, "log_loss", losses[best])
    assert finished_steps(result.run_dir / CHECKPOINTS) == sorted({best, 6})
    assert choose_checkpoint(result.run_dir / CHECKPOINTS).name == f"step-{best}"
    assert [event["phase"] for event in events(result, "phase")][-3:] == ["evaluating", "saving", "done"]


def test_the_model_is_saved_before_an_evaluation_that_fails(tmp_path: Path) -> None:
    """Planning reads the first row groups alone: a later id that is no integer ends the job at its first evaluation."""
    for name, rows, odd in (("train", 100, "7"), ("eval", 400, "none")):
        ids = [*["3", "5"] * (rows // 2 - 1), "8", odd]
        table = pa.table({"y": [0, 1] * (rows // 2), "u": ids})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=100)
    data = {
        "path": str(tmp_path),
        "labels": "[y]",
        "sparse": "[{name: u, ids: integer}]",
        "split": "{kind: files, train: [train*], eval: [eval*]}",
    }
    given = ["dataset=parquet", *(f"dataset.{key}={value}" for key, value in data.items()), "model.hidden=[4]"]
    run_dir = tmp_path / "run"
    with pytest.raises(UserError, match="'none' is not an integer"):
        train(["cluster=embedded", "train.batch_size=10", *given, "train.epochs=2"], run_dir)
    [step] = finished_steps(run_dir / CHECKPOINTS)
    assert step == 10
    assert read_manifest(choose_checkpoint(run_dir / CHECKPOINTS)).progress.evaluation_due

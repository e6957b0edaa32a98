"""Warnings about labels that a job cannot judge by, or that its network cannot explain."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from persia_cli.engines.job import JobResult
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps
from tests.support.jobs import train

ROWS, EVERY = 200, 5


def job(folder: Path, clicked: np.ndarray, bought: np.ndarray, *words: str) -> JobResult:
    """Train on samples with these labels, of which each fifth is for evaluations."""
    ids = np.arange(ROWS) % 7
    pq.write_table(
        pa.table({"clicked": clicked, "bought": bought, "item": ids, "row": np.arange(ROWS)}),
        folder / "samples.parquet",
    )
    data = {"kind": "parquet", "path": str(folder / "samples.parquet"), "dense": [], "sparse": ["item"]}
    data |= {"labels": ["clicked"], "split": {"kind": "every", "n": EVERY}}
    (folder / "data.yaml").write_text(yaml.safe_dump(data))
    small = ["cluster=embedded", "model.dim=4", "model.hidden=[4]", "embedding.memory=16MiB", "train.batch_size=40"]
    small += ["train.epochs=1"]
    return train([f"dataset={folder / 'data.yaml'}", *small, "eval.every_steps=2", *words], folder / "run")


def told(result: JobResult) -> list[str]:
    """The texts of all warnings."""
    return [event["text"] for event in result.events if event["event"] == "warning"]


def test_an_evaluation_without_the_deciding_metric_is_reported_once(tmp_path: Path) -> None:
    labels = (np.arange(ROWS) % 2).astype(np.float32)
    words = ["checkpoint.best_by=gauc", "dataset.group_by=row", "checkpoint.at_end=false"]
    result = job(tmp_path, labels, labels, *words)
    assert [line["gauc"] for line in result.metrics if line["split"] == "eval"] == [None, None]
    [text] = told(result)
    assert text.startswith("the evaluation at step 2 has no gauc")
    assert finished_steps(result.run_dir / CHECKPOINTS) == [2]  # before the first evaluation, which might have failed

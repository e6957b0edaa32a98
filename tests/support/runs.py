"""A small run without files; tests change settings."""

from typing import Any

from persia_cli.config.schema import Run
from persia_cli.data.read.facts import DatasetFacts

SGD = {"kind": "sgd", "lr": 0.1}


def make_run(sparse: list[Any] | None = None, **changes: Any) -> Run:
    """Return a run on Parquet files with two dense columns, the label `click` and these sparse features."""
    dataset = {
        "kind": "parquet",
        "path": "samples",
        "labels": ["click"],
        "dense": ["d0", "d1"],
        "sparse": ["a", "b"] if sparse is None else sparse,
        "split": {"kind": "every", "n": 5},
    }
    values: dict[str, Any] = {
        "name": "small",
        "dataset": dataset | changes.pop("dataset", {}),
        "model": {"kind": "ffnn", "dim": 8, "hidden": [4], "norm": "none", "dropout": 0.0},
        "embedding": {},
        "optimizer": {"embedding": SGD, "dense": SGD},
        "mode": {"kind": "sync"},
        "train": {"batch_size": 32},
        "cluster": {"kind": "local"},
    }
    return Run.model_validate(values | changes)


def make_facts(run: Run, train_rows: int, eval_rows: int) -> DatasetFacts:
    """Return the facts of the run's data set if it had so many samples."""
    return DatasetFacts(
        train_rows=train_rows,
        eval_rows=eval_rows,
        unused_rows=0,
        files=1,
        dense=2,
        sparse=run.dataset.sparse if run.dataset.kind == "parquet" else (),
        tasks=1,
        stand_in=False,
        source="generated for a test",
    )

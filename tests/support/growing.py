"""A folder that grows: files of rows that are all different, and a job that follows it and counts their updates."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import checkpoint_folder, finished_steps, read_manifest
from persia_cli.store.checkpoints.saved_rows import saved_rows
from tests.support.counting import NETWORK

BATCH = 32


def put(folder: Path, number: int, rows: int = 100, first: int | None = None) -> int:
    """Write file `number`, so that it appears whole; its rows have the ids from `first` on. Return the next id."""
    folder.mkdir(exist_ok=True)
    first = number * rows if first is None else first
    ids = np.arange(first, first + rows)
    draws = np.random.default_rng(number)
    table = pa.table(
        {
            "label": pa.array((ids % 3 == 0).astype(np.int8)),
            "x": pa.array(draws.normal(size=rows).astype(np.float32)),
            "row": pa.array(ids),
            "few": pa.array(ids % 7),
            "at": pa.array(1_700_000_000 + ids),
        }
    )
    hidden = folder / f".{number}.parquet"
    pq.write_table(table, hidden)
    os.rename(hidden, folder / f"{number:06}.parquet")  # noqa: PTH104
    return first + rows


def following(folder: Path, rows: int = 250, wait_s: float = 600.0, **follow: object) -> list[str]:
    """Return the arguments of a job that follows a folder; a portion has three of its files of 100 rows."""
    dataset = {
        "kind": "parquet",
        "path": str(folder),
        "labels": ["label"],
        "dense": ["x"],
        "sparse": ["row", "few"],
        "split": {"kind": "train"},
        "follow": {"rows": rows, "max_wait_s": wait_s, "poll_s": 0.05} | follow,
    }
    file = folder.parent / "growing.yaml"
    file.write_text(yaml.safe_dump({"defaults": ["base", "_self_"], "name": "growing", "dataset": dataset}))
    return [
        f"conf={file}",
        "mode=sync",
        "model.hidden=[8]",
        "model.dim=4",
        f"train.batch_size={BATCH}",
        "train.log_every_steps=1",
        "embedding.capacity=65536",
        "embedding.num_partitions=64",
        "cluster.retry_s=0.05",
    ]


def counting(folder: Path) -> list[str]:
    """Return further arguments, with which the value of a row is its number of updates."""
    (folder / "network.py").write_text(NETWORK)
    return [
        "optimizer=sgd",
        "optimizer.embedding.lr=1",
        "optimizer.embedding.schedule={kind: constant, warmup_steps: 0}",
        "embedding.init_bound=0",
        f"model={{kind: custom, dim: 4, file: {folder / 'network.py'}, name: Net, args: {{}}}}",
    ]


def updates(checkpoints: Location) -> dict[int, float]:
    """Return the number of updates of the row of each id of the table `row`, in the last checkpoint."""
    folder = checkpoint_folder(checkpoints, finished_steps(checkpoints)[-1])
    return {
        row["id"]: -row["embedding"][0]
        for file in saved_rows(folder, read_manifest(folder), with_dense=False)
        for batch in file.batches()
        for row in batch.to_pylist()
        if row["table"] == "row"
    }

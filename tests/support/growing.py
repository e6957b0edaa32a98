"""A folder that grows: files of rows that are all different, and a job that follows it and counts their updates."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import checkpoint_folder, finished_steps, read_manifest
from persia_cli.store.checkpoints.saved_rows import saved_rows
from tests.support.counting import ONES

BATCH = 32
NETWORK = f"""{ONES}

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.linear = nn.Linear(shape.dense + 4, 1)

    def forward(self, batch):
        return Ones.apply(batch.pooled["row"]) + self.linear(torch.cat([batch.dense, batch.pooled["few"]], dim=1))
"""
"""A network that trains its weights and the rows of `few`, and counts updates in those of `row`."""


def table_of(number: int, rows: int = 100) -> Any:
    """Return the rows of file `number`, whose ids go on after those of the file before, as an Arrow table."""
    ids = np.arange(number * rows, (number + 1) * rows)
    draws = np.random.default_rng(number)
    return pa.table(
        {
            "label": pa.array((ids % 3 == 0).astype(np.int8)),
            "x": pa.array(draws.normal(size=rows).astype(np.float32)),
            "row": pa.array(ids),
            "few": pa.array(ids % 7),
            "at": pa.array(1_700_000_000 + ids),
        }
    )


def put(folder: Path, number: int, rows: int = 100) -> None:
    """Write file `number`, so that it appears whole."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number}.parquet"
    pq.write_table(table_of(number, rows), hidden)
    os.rename(hidden, folder / f"{number:06}.parquet")  # noqa: PTH104


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
    """Return further arguments, with which the value of a row of `row` is its number of updates."""
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

"""A checkpoint of generated rows, like that of a job of many steps, without the job."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from xxhash import xxh128

from persia_cli.config import record
from persia_cli.config.schema import Run
from persia_cli.observe.journal import EVENTS
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    EMBEDDINGS,
    FORMAT_VERSION,
    Manifest,
    RunProgress,
    SavedTable,
    begin_checkpoint,
    publish,
)
from persia_cli.store.checkpoints.saved import SavedFile, SavedRows
from persia_cli.version import __version__


def made_up_rows(rows: int, dim: int, step: int, tables: Sequence[str], seed: int = 0) -> pd.DataFrame:
    """Return rows of tables, mixed: norms over several powers of two, some of zeros alone."""
    draw = np.random.default_rng(seed)
    values = (draw.normal(size=(rows, dim)) * np.exp(draw.normal(size=(rows, 1)))).astype(np.float32)
    values[draw.random(rows) < 0.05] = 0.0
    columns: dict[str, Any] = {
        "table": draw.choice(tables, rows),
        "id": draw.integers(0, 2**64, rows, np.uint64),
        "last_used": draw.integers(0, step, rows),
        "embedding": list(values),
    }
    return pd.DataFrame(columns)


def write_rows(path: Path, rows: pd.DataFrame, dim: int, number: int = 0, partitions: int = 1) -> SavedFile:
    """Write rows as an embedding server of one partition does; optimizer states are left out."""
    table = pa.table(
        {
            "table": pa.array(rows["table"], pa.string()).dictionary_encode(),
            "id": pa.array(rows["id"], pa.uint64()),
            "last_used": pa.array(rows["last_used"], pa.int64()),
            "embedding": pa.array(rows["embedding"].to_list(), pa.list_(pa.float32(), dim)),
        }
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=1000):
            writer.write_batch(batch)
    content = path.read_bytes()
    tables = {str(name): int(count) for name, count in rows["table"].value_counts().items()}
    saved = SavedRows(0, partitions, number, number + 1, tables)
    return SavedFile(path.parent.name, path.name, len(content), xxh128(content).hexdigest(), saved)


def write_run(
    run_dir: Path, run: Run, step: int, files: Sequence[pd.DataFrame], counters: dict[str, dict[str, int]] | None = None
) -> Path:
    """Write a run directory with one checkpoint of all its tables; return the checkpoint. `counters` are its record."""
    run_dir.mkdir()
    record.write_run(run, run_dir / "config.yaml")
    folder = begin_checkpoint(run_dir / CHECKPOINTS, step)
    (folder / EMBEDDINGS).mkdir(parents=True)
    dim = run.model.dim
    saved = [
        write_rows(
            folder / EMBEDDINGS / f"group-0-partitions-000{number}-000{number}.arrow", rows, dim, number, len(files)
        )
        for number, rows in enumerate(files)
    ]
    every = [name for rows in files for name in rows["table"]]
    names = list(dict.fromkeys(name for rows in files for name in sorted(rows["table"].unique())))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        persia_version=__version__,
        step=step,
        samples=step * run.train.batch_size,
        seed=run.seed,
        config=run.model_dump(mode="json"),
        tables=[SavedTable(name, dim, "float32", 0, every.count(name)) for name in names],
        groups={"0": sum(map(len, files))},
        progress=RunProgress(0, 0, 0, 0, 0, 0, 0, 0, []),
        files=saved,
    )
    if counters is not None:
        events = [{"time": 1.0, "event": "ready"}, {"time": 2.0, "event": "tables", "tables": counters}]
        (run_dir / EVENTS).write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return publish(run_dir / CHECKPOINTS, folder, manifest)

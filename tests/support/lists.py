"""A small data set of lists of ids, and the arguments of a job that reads it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FOLDER = Path(__file__).parent
TRAIN_ROWS, EVAL_ROWS = 138, 50
"""In batches of 32, the last one has 10 samples: with two ranks all of them are the first one's."""
STEPS = 10
"""Of two epochs."""


def lists_job(folder: Path) -> list[str]:
    """Write the data set into `folder` and return the arguments of a job on it."""
    for name, rows in (("train", TRAIN_ROWS), ("eval", EVAL_ROWS)):
        pq.write_table(_samples(rows), folder / f"{name}.parquet", row_group_size=25)
    return [
        f"conf={FOLDER / 'lists.yaml'}",
        f"dataset.path='{folder}'",
        f"model.file='{FOLDER / 'sequence_network.py'}'",
    ]


def hide_labels(folder: Path, **shares: float) -> None:
    """Make this share of each label null in the files of `lists_job`."""
    draw = np.random.default_rng(7)
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        for name, share in shares.items():
            hidden = pa.array(draw.random(table.num_rows) < share)
            values = pc.if_else(hidden, None, table[name])
            table = table.set_column(table.column_names.index(name), name, values)
        pq.write_table(table, path, row_group_size=25)


def _samples(rows: int) -> pa.Table:
    draw = np.random.default_rng(rows)
    columns = {
        "click": pa.array(draw.random(rows) < 0.4),
        "buy": pa.array(draw.random(rows), pa.float64()),
        "weight": pa.array(draw.exponential(size=rows), pa.float32()),
        "user": pa.array(draw.integers(-20, 20, rows)),
        "place": pa.array([None if x < 0.2 else int(x * 30) for x in draw.random(rows)], pa.int32()),
    }
    columns |= {f"d{i}": pa.array(draw.normal(size=rows), pa.float32()) for i in range(3)}
    for name, longest in (("tags", 3), ("liked", 5), ("seen", 5), ("history", 7), ("words", 2)):
        lengths = draw.integers(0, longest + 1, rows)
        columns[name] = pa.array([draw.integers(0, 40, length).tolist() for length in lengths], pa.list_(pa.int64()))
    return pa.table(columns)

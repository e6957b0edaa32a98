"""The samples of a comparison: a prepared data set, with ids that are numbers from 1 on in every column."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

LABEL, PART = "label", "part"
PARTS = ("train", "train", "train", "eval", "test")
"""Part of row r by r mod 5: three fifths train, one ends training early, one is for the metrics of the table."""


class Samples(NamedTuple):
    """The files of a comparison, and the ids of each column: 0 is of none, the last of all that training never saw."""

    train: Path
    test: Path
    ids: dict[str, int]


def write_samples(prepared: Path, folder: Path) -> Samples:
    """Write `prepared` (a folder with dataset.yaml, of one label and one id per column) for both sides.

    Numbers become separate ids by the floor of their square: recipes have taken their logarithm, and this is the
    usual way on Criteo's data.
    """
    settings = yaml.safe_load((prepared / "dataset.yaml").read_text())
    [label], numbers = settings["labels"], settings.get("dense") or []
    table = pq.read_table(sorted(prepared.glob("*.parquet")), columns=[label, *numbers, *settings["sparse"]])
    part = np.array(PARTS)[np.arange(len(table)) % len(PARTS)]
    columns, ids = {LABEL: table[label].cast(pa.float32())}, {}
    for name in (*numbers, *settings["sparse"]):
        values = table[name].combine_chunks()
        if name in numbers:
            values = pc.floor(pc.multiply(values, values)).cast(pa.int64(), safe=False)
        codes, most = number_ids(values, part == "train")
        columns[name], ids[name] = pa.array(codes), most + 1
    folder.mkdir(parents=True, exist_ok=True)
    whole = pa.table(columns | {PART: pa.array(part)})
    files = Samples(folder / "train.parquet", folder / "test.parquet", ids)
    described = {"kind": "parquet", "path": files.train.name, "labels": [LABEL], "dense": [], "sparse": [*ids]}
    described |= {"split": {"kind": "column", "column": PART, "eval": "eval"}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(described))
    pq.write_table(whole.filter(pa.array(part != "test")), files.train)
    pq.write_table(whole.filter(pa.array(part == "test")), files.test)
    return files


def number_ids(values: pa.Array, seen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], int]:
    """Return a number for each value, from 1 on by those that are `seen`, and one more for all others together."""
    known = pc.unique(values.filter(pa.array(seen)))
    codes = pc.index_in(values, value_set=known).fill_null(len(known)).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64) + 1, len(known) + 1

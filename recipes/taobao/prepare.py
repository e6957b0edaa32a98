"""Clicks on Taobao's display advertisements to Parquet, each with what its user had looked at before."""

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.bad_rows import BadRows
from persia_cli.data.buckets import read_bucket, spread
from persia_cli.data.parts import Part, PartLog, read_blocks, read_table
from persia_cli.data.prepare_options import PrepareOptions, PrepareReport
from persia_cli.data.recipe import DataError, Progress, find_file, write_dataset
from persia_cli.data.text import BYTES, INTEGER, NUMBER, SKIP, TEXT, TextBlock, TextFormat

PROFILE = ["cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level",
           "occupation", "new_user_class_level"]  # fmt: skip
AD = ["cate_id", "campaign_id", "customer", "brand"]


def _csv(columns: dict[str, Any]) -> TextFormat:
    return TextFormat(columns, delimiter=",", header=True)


SAMPLES = _csv({"user": INTEGER, "time_stamp": INTEGER, "adgroup_id": INTEGER, "pid": TEXT, "nonclk": SKIP, "clk": INTEGER})
ADS = _csv({"adgroup_id": INTEGER} | dict.fromkeys(AD, INTEGER) | {"brand": BYTES, "price": NUMBER})
USERS = _csv({"userid": INTEGER} | dict.fromkeys(PROFILE, INTEGER))
BEHAVIOURS = _csv({"user": INTEGER, "time_stamp": INTEGER, "btag": SKIP, "cate": INTEGER, "brand": INTEGER})

HISTORY = 50
"""Behaviours that go with a sample, the last ones before it."""
LAST_DAY = 1494604800
"""Midnight in China before 13 May 2017, in seconds since 1970: samples from then on evaluate."""
BUCKET_BYTES = 128 << 20
"""Bytes of behaviours, as text, that are in memory at once in each thread; as arrays they take less than that."""
_CHUNK_ROWS = 1 << 15
_LARGEST = 2**32 - 1

DATASET = {
    "labels": ["label"],
    "dense": ["price"],
    "sparse": [
        "user", "adgroup_id", "pid", *AD, *PROFILE,
        {"name": "cate_history", "table": "cate_id", "pooling": "none", "max_length": HISTORY},
        {"name": "brand_history", "table": "brand", "pooling": "none", "max_length": HISTORY},
    ],
    "split": {"kind": "column", "column": "split", "train": "train", "eval": "eval"},
    "fill": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """What is known of advertisements or users, by ascending key."""

    keys: NDArray[np.int64]
    table: Any

    def of(self, keys: NDArray[np.int64]) -> Any:
        """Return one row for each key, of nulls where nothing is known."""
        place = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return self.table.take(pa.array(place, mask=self.keys[place] != keys))


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Write Parquet from the folder with the four files, plain or compressed.

    Samples and behaviours are first spread over files by user, beside the output, which takes about half as much space
    as the text of behaviour_log.csv; so memory stays bounded. Raises DataError if a file is missing, or if more rows
    than allowed do not parse.
    """
    samples, behaviours = find_file(source, "raw_sample.csv"), find_file(source, "behavior_log.csv")
    sides = find_file(source, "ad_feature.csv"), find_file(source, "user_profile.csv")
    bad = BadRows(options.max_bad_rows)
    ads, users = (
        _side(read_table(file, format, table, bad))
        for file, format, table in zip(sides, (ADS, USERS), (_ads, _users), strict=True)
    )
    nbytes = samples.stat().st_size + behaviours.stat().st_size
    number = max(1, math.ceil(behaviours.stat().st_size / BUCKET_BYTES))
    work = output.absolute().with_name(f".{output.name}.by-user")
    shutil.rmtree(work, ignore_errors=True)
    try:
        _spread(samples, SAMPLES, _samples, bad, work / "samples", number, lambda done: progress(done, 2 * nbytes))
        ...
    finally:
        shutil.rmtree(work, ignore_errors=True)

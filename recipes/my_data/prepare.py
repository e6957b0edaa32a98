"""Your own CSV to Parquet: a template to copy and change.

    persia recipe cp my_data mine        # your own copy of this folder
    persia recipe prepare ./mine --input mine/purchases.csv --output data/mine

The places to change are numbered 1 to 5. No code here runs once per row: a block is some ten thousand rows, and every
operation is on whole columns.
"""

from pathlib import Path
from typing import Any

import numpy as np

from persia_cli.data.prepare.parts import text_parts
from persia_cli.data.prepare.recipe import (
    PrepareOptions,
    PrepareReport,
    Progress,
    declared,
    source_files,
    write_dataset,
)
from persia_cli.data.prepare.text import TextBlock, TextFormat
from persia_cli.data.read.kinds import BYTES, INTEGER, NUMBER, SKIP, TEXT, text_of

# 1. The layout of the file: its columns, in order, and the kind of each.
#    INTEGER and NUMBER are checked while they are read, and a row that does not fit is reported with its line.
#    TEXT is a category: it becomes a 64-bit hash, the same on every machine, so no dictionary of texts is needed.
#    text_of("item") is a category whose ids another column also has; BYTES is text that is split.
FORMAT = TextFormat(
    {
        "order": SKIP,  # not used, but it must be named
        "time": INTEGER,
        "user": TEXT,
        "item": TEXT,
        "category": TEXT,
        "last_item": text_of("item"),
        "tags": BYTES,
        "price": NUMBER,
        "age": NUMBER,
        "bought": TEXT,
    },
    delimiter=",",  # "\t" for tabs; two characters are fine, too
    header=True,  # the first line names the columns, and must name exactly these
    quote='"',  # fields may be in "double quotes"
)

# 2. What the columns that the model reads are made of. A model that is exported and served makes them of a request by
#    the same lines, so requests have the fields of your file. What no step can make, make in step 4.
RAW = declared(
    # Dense values should be of the order of 1: the logarithm of a price, years around 40.
    {"columns": ["price"], "read": "number", "steps": [{"at_least": 0}, "log1p", "float32"]},
    {"columns": ["age"], "read": "number", "missing": 40, "steps": [{"subtract": 40}, {"divide": 15}, "float32"]},
    {"columns": ["age_unknown"], "field": "age", "read": "absence"},  # tells a missing age from one of 40
    {"columns": ["user", "item", "category"], "read": "text"},
    {"columns": ["last_item"], "read": "text", "table": "item"},
    {"columns": ["tags"], "read": "texts", "separator": "|"},  # "red|new" becomes two ids, an empty field none
)

# 3. The data set, in the keys of conf/dataset/parquet.yaml; the names are those of steps 2 and 4.
DATASET = {
    "labels": ["label"],
    "dense": ["price", "age", "age_unknown"],
    "sparse": [
        "user",
        "item",
        "category",
        {"name": "last_item", "table": "item"},  # reads the table of `item`, so both train the same embeddings
        {"name": "tags", "pooling": "mean"},  # a list of ids for each row, whose embeddings are averaged
    ],
    "raw": RAW,
    "split": {
        "kind": "every",
        "n": 5,
        "offset": 4,
    },  # every fifth row evaluates; --split chronological:0.2 overrules it
}


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Write Parquet from a CSV file, or a folder of such files, plain or compressed; raises DataError."""
    files = source_files(source, "give purchases.csv, or a folder of such files")
    parts = [part for file in files for part in text_parts(file, FORMAT, _table)]
    return write_dataset(parts, DATASET, output, options, progress, time="time")  # `time` orders a chronological split


def _table(block: TextBlock) -> Any:
    """Return the rows of a block as a table of the columns that step 3 names."""
    # 4. The columns to write: those of step 2, and others, such as the label. Numbers come as numpy arrays, one value
    #    per row; an empty field is an error unless `missing=` gives a value for it. `block.numbers("price")` is one.
    columns = block.made(RAW) | {
        "label": block.choices("bought", ["no", "yes"]).astype(np.int8),  # 0, 1; anything else is a bad row
        "time": block.integers("time"),  # not for the model, but for --split chronological:0.2
    }

    # 5. Checks that only you can know. Wrong rows are reported and left out; without --max-bad-rows, one of them ends
    #    the preparation, and nothing is written.
    block.reject(block.numbers("price") < 0, "the price is negative")

    return block.table(columns)

"""Criteo's text format (label, I1-I13, C1-C26, tab-separated) to Parquet."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.recipe import DataError, GroupedWriter, PrepareOptions, PrepareReport, Progress, new_folder
from persia_cli.data.text import BadRows, TextBlock, TextFile

DENSE = [f"I{number}" for number in range(1, 14)]
SPARSE = [f"C{number}" for number in range(1, 27)]
COLUMNS = ["label", *DENSE, *SPARSE]

_NOT_HEX = 255
_HEX = np.full(256, _NOT_HEX, np.uint8)
_HEX[np.frombuffer(b"0123456789", np.uint8)] = np.arange(10)
_HEX[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)
_HEX[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Write one Parquet file per source file, which is plain or .gz; `source` is such a file or a folder of them.

    Raises DataError if there is no source, or if more rows than allowed do not parse.
    """
    files = _source_files(source)
    total = sum(file.stat().st_size for file in files)
    bad = BadRows(options.max_bad_rows)
    rows = done = 0
    made: list[Path] = []
    with new_folder(output) as folder:
        for file, name in files.items():
            with GroupedWriter(folder / name, options.row_group_rows) as writer:
                for block in TextFile(file, COLUMNS, "\t", bad).blocks(partial(_progress, progress, done, total)):
                    writer.write(_table(block))
            rows += writer.rows
            if writer.rows:
                made.append(output / name)
            done += file.stat().st_size
        if not rows:
            raise DataError(f"{source} holds no rows in Criteo's format")
    return PrepareReport(rows, tuple(made), sum(path.stat().st_size for path in made), bad.count, tuple(bad.first))


def _progress(progress: Progress, done: int, total: int, more: int) -> None:
    progress(done + more, total)


def _source_files(source: Path) -> dict[Path, str]:
    """Return the source files and the names of what they become."""
    if not source.exists():
        raise DataError(f"{source} does not exist; give the unpacked train.txt, or a folder of day_*.gz")
    found = [source] if source.is_file() else sorted(file for file in source.iterdir() if file.is_file())
    names = {file: file.name.split(".")[0] + ".parquet" for file in found if not file.name.startswith(".")}
    if not names:
        raise DataError(f"{source} is a folder without files")
    if len(set(names.values())) < len(names):
        raise DataError(f"{source} holds files whose names differ in their endings only; keep one of each")
    return names


def _table(block: TextBlock) -> Any:
    """Return the good rows of a block as a table of the columns that the data set has."""
    label = pc.index_in(block.columns.column("label"), value_set=pa.array([b"0", b"1"], pa.binary()))
    block.reject(label.is_null().to_numpy(zero_copy_only=False), "the label is neither 0 nor 1")
    arrays = [label.cast(pa.int8())]
    for name in DENSE:
        values, wrong = _integers(block.columns.column(name))
        block.reject(wrong, f"{name} is not an integer")
        arrays.append(pa.array(np.log1p(np.maximum(values, 0)).astype(np.float32)))
    for name in SPARSE:
        ids, wrong = _hexadecimal(block.columns.column(name))
        block.reject(wrong, f"{name} is not 8 hexadecimal digits")
        arrays.append(ids)
    table = pa.table(arrays, COLUMNS)
    return table if block.good.all() else table.filter(pa.array(block.good))


def _integers(column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return int64 values with 0 for missing ones, and which are no integers."""
    looks_right = pc.fill_null(pc.match_substring_regex(column, "^-?[0-9]{1,18}$"), True)
    wrong = ~looks_right.to_numpy(zero_copy_only=False)
    numbers = pc.if_else(looks_right, column, None).cast(pa.string()).cast(pa.int64()).fill_null(0)
    return numbers.to_numpy(zero_copy_only=False), wrong


def _hexadecimal(column: Any) -> tuple[Any, NDArray[np.bool_]]:
    """Return uint64 ids with null for missing ones, and which are not 8 hexadecimal digits."""
    missing = column.is_null().to_numpy(zero_copy_only=False)
    fits = pc.fill_null(pc.equal(pc.binary_length(column), 8), False)
    text = pc.if_else(fits, column, pa.scalar(b"00000000", pa.binary()))
    digits = _HEX[np.frombuffer(text.buffers()[2], np.uint8)[8 * text.offset :][: 8 * len(text)].reshape(-1, 8)]
    wrong = (digits == _NOT_HEX).any(axis=1) | ~(fits.to_numpy(zero_copy_only=False) | missing)
    octets = np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    return pa.array(octets.view(">u4").reshape(-1).astype(np.uint64), mask=missing), wrong

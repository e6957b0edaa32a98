"""Small CSV and JSON Lines files, and their samples as a data set."""

import csv
import gzip
import json
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.prepare.text import TextBlock, TextFormat, block_of
from persia_cli.data.read.bad_rows import Reject
from persia_cli.data.read.text import TextFile, read_rows

ROWS = 500


def block_of_text(data: bytes, format: TextFormat, reject: Reject) -> TextBlock:
    """Parse the whole content of a file of one block."""
    with NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        [rows] = read_rows(TextFile(file.name), format, reject)
    return block_of(rows, format, reject)


def dataset(path: Any, **changes: Any) -> ParquetDataset:
    keys: dict[str, Any] = {"kind": "parquet", "path": str(path), "labels": ["y"], "dense": ["d"], "sparse": ["c"]}
    return ParquetDataset.model_validate({**keys, "split": {"kind": "every", "n": 5}, "fill": -1.0, **changes})


def rows(first: int = 0) -> list[dict[str, Any]]:
    """Rows with quotes, delimiters, line ends, absent values and ids of both kinds."""
    return [
        {
            "y": n % 2,
            "d": None if n % 7 == 0 else n / 3,
            "c": None if n % 11 == 0 else f'city "{n % 13}", \n{n % 3}',
            "user": n * 10**15 - 2,
            "zip": f"{n % 50:05}",
        }
        for n in range(first, first + ROWS)
    ]


def write_csv(path: Path, table: list[dict[str, Any]], **options: Any) -> None:
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), **options)
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in table)


def write_jsonl(path: Path, table: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in table).encode()
    codec = {".zst": "zstd", ".gz": "gzip"}.get(path.suffix)
    path.write_bytes(text)
    if codec:
        with pa.CompressedOutputStream(str(path), codec) as file:
            file.write(text)

"""Checkpoints with changed content: a file is rewritten, and the manifest is made consistent with it."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors import safe_open
from safetensors.numpy import load_file, save
from xxhash import xxh128

MANIFEST = "manifest.json"


def read_note(path: Path) -> dict[str, Any]:
    """Return a manifest as plain values, without its checksum."""
    note = json.loads(path.read_bytes())
    del note["sha256"]
    return note


def write_note(path: Path, note: dict[str, Any]) -> None:
    """Write a manifest with its checksum."""
    rest = json.dumps(note, indent=2).removeprefix("{\n").encode() + b"\n"
    path.write_bytes(b'{\n  "sha256": "%s",\n' % sha256(rest).hexdigest().encode() + rest)


def renew(checkpoint: Path, change: Callable[[dict[str, Any]], None] = lambda note: None) -> None:
    """Make sizes, checksums and numbers of rows in the manifest fit the files, then `change` it."""
    note = read_note(checkpoint / MANIFEST)
    for file in note["files"]:
        content = (checkpoint / file["folder"] / file["name"]).read_bytes()
        file |= {"nbytes": len(content), "xxh128": xxh128(content).hexdigest()}
    change(note)
    write_note(checkpoint / MANIFEST, note)


def recount(note: dict[str, Any]) -> None:
    """Make the numbers of rows of tables and groups fit those of files."""
    rows = [file["rows"] for file in note["files"] if file["rows"]]
    for table in note["tables"]:
        table["rows"] = sum(each["tables"].get(table["name"], 0) for each in rows if each["group"] == table["group"])
    note["groups"] = {
        group: sum(table["rows"] for table in note["tables"] if str(table["group"]) == group)
        for group in note["groups"]
    }


def read_arrow(path: Path) -> pa.Table:
    """Return the rows of a file."""
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_file(source).read_all().unify_dictionaries().combine_chunks()


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write rows as one record batch or more, with the schema's metadata."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


def vectors_of(table: pa.Table, name: str) -> np.ndarray:
    """Return a column of vectors as a copy, float32 [n, size]."""
    column = table.column(name).combine_chunks()
    return column.flatten().to_numpy().reshape(len(column), -1).copy()


def with_vectors(table: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    """Return the table with other vectors in a column."""
    kind = pa.list_(pa.float32(), values.shape[1])
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), pa.float32()), type=kind)
    return table.set_column(table.schema.get_field_index(name), name, column)


def change_tensors(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Rewrite a file of dense tensors."""
    tensors = {name: values.copy() for name, values in load_file(path).items()}
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    change(tensors)
    path.write_bytes(save(tensors, metadata))

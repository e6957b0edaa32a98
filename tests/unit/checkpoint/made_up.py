"""Checkpoints of generated rows in the order of their keys, in any number of files."""

import json
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import save
from xxhash import xxh128

from tests.support.forge import MANIFEST, read_note, write_note
from tests.support.runs import make_run
from tests.support.saved_rows import write_run

MASK = 2**64 - 1


def key_of(table: str, id_: int) -> int:
    """The key of an id, as docs/kernels.md describes it, in Python's integers."""
    x = id_ ^ int.from_bytes(blake2b(table.encode(), digest_size=8).digest(), "little")
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def write_sorted(
    run_dir: Path, step: int, rows: pd.DataFrame, files: int = 1, dense: dict[str, np.ndarray] | None = None
) -> Path:
    """Write a run with one checkpoint of these rows (table, id, last_used, embedding of 8); returns the checkpoint."""
    keys = [key_of(table, int(id_)) for table, id_ in zip(rows["table"], rows["id"], strict=True)]
    rows = rows.assign(key=pd.array(keys, "UInt64")).sort_values(["key", "table"])
    place = [(int(key) >> 32) * files >> 32 for key in rows["key"]]
    parts = [rows[[p == number for p in place]] for number in range(files)]
    checkpoint = write_run(run_dir, make_run(), step, parts)
    content = save({"w": np.zeros(3, np.float32)} if dense is None else dense, {"persia": json.dumps({})})
    (checkpoint / "dense").mkdir()
    (checkpoint / "dense" / "dense.safetensors").write_bytes(content)
    note = read_note(checkpoint / MANIFEST)
    entry = {"folder": "dense", "name": "dense.safetensors", "nbytes": len(content), "rows": None}
    note["files"].append(entry | {"xxh128": xxh128(content).hexdigest()})
    write_note(checkpoint / MANIFEST, note)
    return checkpoint

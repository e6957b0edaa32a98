"""The content of a checkpoint, read by other code than the program's."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray


@dataclass(frozen=True)
class SavedRows:
    """Rows of one table by rising id: ids uint64 [n], embedding, each state float32 [n, dim], last_used int64 [n]."""

    ids: NDArray[np.uint64]
    last_used: NDArray[np.int64]
    embedding: NDArray[np.float32]
    states: dict[str, NDArray[np.float32]]


def embedding_files(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint with rows."""
    return sorted((checkpoint / "embeddings").iterdir())


def read_rows(checkpoint: Path) -> dict[str, SavedRows]:
    """Return the rows of a checkpoint by table, for any number of servers that saved them."""
    files = [pd.read_feather(path) for path in embedding_files(checkpoint)]
    parts: dict[str, list[pd.DataFrame]] = {}
    for rows in files:
        for name, part in rows.groupby("table", observed=True):
            parts.setdefault(str(name), []).append(part)
    return {name: _saved(pd.concat(tables).sort_values("id")) for name, tables in parts.items()}


def _saved(rows: pd.DataFrame) -> SavedRows:
    vectors = {name: np.stack(rows[name].to_list()) for name in rows.columns[3:]}
    embedding = vectors.pop("embedding")
    return SavedRows(rows["id"].to_numpy(), rows["last_used"].to_numpy(), embedding, vectors)


def assert_same_model(one: Path, other: Path) -> None:
    """Require that two checkpoints have the same bits: dense weights, dense optimizer, rows and their states."""
    for path in sorted((one / "dense").iterdir()):
        assert path.read_bytes() == (other / "dense" / path.name).read_bytes(), path.name
    ours, theirs = read_rows(one), read_rows(other)
    assert ours.keys() == theirs.keys()
    for name, rows in ours.items():
        for field in ("ids", "last_used", "embedding"):
            np.testing.assert_array_equal(getattr(rows, field), getattr(theirs[name], field), err_msg=f"{name} {field}")
        assert rows.states.keys() == theirs[name].states.keys()
        for state, values in rows.states.items():
            np.testing.assert_array_equal(values, theirs[name].states[state], err_msg=f"{name} {state}")

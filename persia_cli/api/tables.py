"""Tables that programs have in memory: written to Parquet for a job, and read from its record."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from persia_cli.disk import writing
from persia_cli.errors import UserError


def as_table(data: Any) -> Any:
    """Return a table of Arrow, of pandas, polars or another library as a pyarrow.Table; raises UserError."""
    import pyarrow as pa

    if hasattr(data, "iloc"):
        return pa.Table.from_pandas(data, preserve_index=False)
    try:
        return pa.table(data)
    except (TypeError, ValueError) as error:
        kind = type(data).__name__
        raise UserError(f"{kind} is no data: give a path, a pyarrow.Table or a DataFrame") from error


def write_table(data: Any, path: Path) -> str:
    """Write a table to a new Parquet file, with its folder; returns the path. Raises UserError, DiskError."""
    import pyarrow.parquet as pq

    table = as_table(data)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    return str(path)


@contextmanager
def paths_of(data: Any, folder: Path) -> Iterator[list[str]]:
    """Yield the paths of data: those given, or that of a table's file, which lasts as long as the context."""
    given = [data] if isinstance(data, str | os.PathLike) else data
    if isinstance(given, list | tuple) and all(isinstance(each, str | os.PathLike) for each in given):
        yield [os.fspath(each) for each in given]
    else:
        with scratch(folder) as place:
            yield [write_table(data, place / "data.parquet")]


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder in another folder."""
    with writing(folder), TemporaryDirectory(prefix="python-", dir=folder) as place:
        yield Path(place)


def frame_of(lines: Sequence[Mapping[str, Any]]) -> Any:
    """Return objects as rows of a pandas.DataFrame, or of a pyarrow.Table where pandas is not installed."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    columns = {name: [line.get(name) for line in lines] for name in names}
    try:
        import pandas as pd
    except ModuleNotFoundError:
        import pyarrow as pa

        return pa.table(columns)
    return pd.DataFrame(columns)

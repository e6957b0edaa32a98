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
    """Return a table of Arrow, of pandas, polars or another library as a pyarrow.Table; raises UserError.

    Named levels of an index of pandas become columns, since ids are often there.
    """
    import pyarrow as pa

    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return _table_of_columns(_pandas_columns(data))
    try:
        table = pa.table(data)
    except (TypeError, ValueError) as error:
        kind = type(data).__name__
        raise UserError(f"{kind} is no data: give a path, a pyarrow.Table or a DataFrame ({error})") from error
    if type(data).__module__.partition(".")[0] == "polars":
        for field in table.schema:
            if pa.types.is_fixed_size_binary(field.type):  # the addresses of objects
                raise UserError(f"column {field.name}: polars holds its values as Python objects; give it another type")
    return table


def _pandas_columns(frame: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an index's named levels, and of the columns."""
    for level, name in enumerate(frame.index.names):
        values = frame.index.get_level_values(level)
        # set_index(…, drop=False) has it as a column, too.
        if name is not None and not (name in frame.columns and values.equals(frame.set_index(name).index)):
            yield str(name), values
    for position, name in enumerate(frame.columns):
        yield str(name), frame.iloc[:, position]


def _table_of_columns(columns: Iterator[tuple[str, Any]]) -> Any:
    """Return columns of pandas as a pyarrow.Table; raises UserError."""
    import pyarrow as pa

    arrays: dict[str, Any] = {}
    for name, values in columns:
        if name in arrays:
            raise UserError(f"the data has two columns {name}; rename one of them (a named index is a column, too)")
        try:
            arrays[name] = pa.array(values, from_pandas=True)
            kind = getattr(arrays[name].type, "value_type", arrays[name].type)
            if isinstance(kind, pa.BaseExtensionType):  # periods and intervals, which only pandas can read
                raise TypeError(f"{kind.extension_name} is a type of pandas alone")
        except (TypeError, ValueError, OverflowError, NotImplementedError) as error:  # as pyarrow's own errors are
            reason = str(error.args[0] if error.args else error).rstrip(".")
            raise UserError(
                f"column {name} (dtype {values.dtype}): {reason}; convert it first, "
                f"for example to text with astype(str)"
            ) from error
    return pa.table(arrays)


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
    if isinstance(given, list | tuple) and all(isinstance(item, str | os.PathLike) for item in given):
        yield [os.fspath(item) for item in given]
    else:
        with scratch(folder) as temporary:
            yield [write_table(data, temporary / "data.parquet")]


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder in another folder."""
    with writing(folder), TemporaryDirectory(prefix="python-", dir=folder) as temporary:
        yield Path(temporary)


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

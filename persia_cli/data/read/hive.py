"""Columns named by folders, as in `day=2024-01-01/part-0.parquet` (hive partitions)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder value that stands for null."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def folder_values(path: str) -> dict[str, str | None]:
    """Return the columns and values named by the folders of a path, decoded as in URLs; None for a null."""
    values: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals and name:
            values[unquote(name)] = None if value == NULL else unquote(value)
    return values


class HiveColumns:
    """The columns named by a data set's folders: int64 if every value is an integer, else strings."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._values = {path: folder_values(path) for path in paths}
        texts: dict[str, set[str]] = {}
        for values in self._values.values():
            for name, value in values.items():
                texts.setdefault(name, set()).update([] if value is None else [value])
        self._types = {
            name: pa.int64() if all(map(_INTEGER.fullmatch, values_there)) and values_there else pa.string()
            for name, values_there in texts.items()
        }

    def schema(self, path: str, file_schema: Any) -> Any:
        """Return a file's Arrow schema with the columns of its folders that the file itself does not have."""
        names = [name for name in self._values[path] if name not in file_schema.names]
        return pa.schema([*file_schema, *(pa.field(name, self._types[name]) for name in names)])

    def constants(self, path: str, file_schema: Any) -> dict[str, Any]:
        """Return the columns of a file's folders that the file itself does not have, each as an Arrow scalar."""
        return {
            name: pa.scalar(
                value if value is None or self._types[name] == pa.string() else int(value), self._types[name]
            )
            for name, value in self._values[path].items()
            if name not in file_schema.names
        }


def with_constants(table: Any, constants: Mapping[str, Any]) -> Any:
    """Return an Arrow table or batch with added constant columns, encoded as dictionaries of one value."""
    for name, value in constants.items():
        zeros = pa.repeat(pa.scalar(0, pa.int8()), table.num_rows)
        if not value.is_valid:
            zeros = pa.nulls(table.num_rows, pa.int8())
        table = table.append_column(name, pa.DictionaryArray.from_arrays(zeros, pa.array([value.as_py()], value.type)))
    return table

"""Recipes: one folder per real data set, with how to get it and a `prepare` that turns it into Parquet."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.data.text import BadRow
from persia_cli.errors import DataError
from persia_cli.share import shared

__all__ = [
    "DataError",
    "GroupedWriter",
    "PrepareOptions",
    "PrepareReport",
    "Progress",
    "Recipe",
    "list_recipes",
    "load_recipe",
    "new_folder",
]

Progress = Callable[[int, int], None]
"""Called with bytes of the source read so far and in all."""


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """What a person may choose."""

    max_bad_rows: int = 0
    """Rows that may fail to parse before the recipe gives up."""
    row_group_rows: int = 65536
    """Rows of a row group: the unit that loaders read and shuffle."""


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """What a recipe made."""

    rows: int
    files: tuple[Path, ...]
    nbytes: int
    """Bytes of these files."""
    bad_rows: int
    """Rows left out because they did not parse."""
    first_bad_rows: tuple[BadRow, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe: `prepare(source, output, options, progress)` writes the folder `output` or raises DataError."""

    name: str
    folder: Path
    title: str
    """First line of its README."""
    prepare: Callable[[Path, Path, PrepareOptions, Progress], PrepareReport]


def list_recipes() -> tuple[str, ...]:
    """Return the names of all recipes, sorted."""
    return tuple(sorted(path.parent.name for path in shared("recipes").glob("*/prepare.py")))


def load_recipe(name: str) -> Recipe:
    """Load a recipe's prepare.py by its path; raises DataError for an unknown name."""
    names = list_recipes()
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there is: {', '.join(names)}"
        raise DataError(f"no recipe {name}; {hint}")
    folder = shared("recipes") / name
    spec = spec_from_file_location(f"persia_recipe_{name}", folder / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    title = (folder / "README.md").read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    return Recipe(name, folder, title, module.prepare)


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Give a hidden folder to write in, which takes its real name at the end; nothing remains after a failure.

    Raises DataError if the output is there already and not an empty folder.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output} exists already; name a folder that does not, or remove it")
    partial = output.absolute().with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.replace(output)
    except OSError as error:
        raise DataError(f"cannot write {output}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class GroupedWriter:
    """Writes tables to one Parquet file (zstd) in row groups of equal size; a context manager."""

    def __init__(self, path: Path, row_group_rows: int) -> None:
        self.rows = 0
        self._path = path
        self._row_group_rows = row_group_rows
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self._writer: Any = None

    def __enter__(self) -> "GroupedWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._waiting_rows:
            self._write(pa.concat_tables(self._waiting))
        if self._writer is not None:
            self._writer.close()

    def write(self, table: Any) -> None:
        """Add rows; whole row groups are written at once, the rest waits."""
        self.rows += table.num_rows
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        if self._waiting_rows >= self._row_group_rows:
            rows = pa.concat_tables(self._waiting)
            whole = rows.num_rows // self._row_group_rows * self._row_group_rows
            self._write(rows.slice(0, whole))
            self._waiting, self._waiting_rows = [rows.slice(whole)], rows.num_rows - whole

    def _write(self, rows: Any) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, rows.schema, compression="zstd")
        self._writer.write_table(rows, row_group_size=self._row_group_rows)

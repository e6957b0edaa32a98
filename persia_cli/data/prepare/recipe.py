"""Recipes: one folder per public data set, with instructions to get it and a `prepare` that converts it to Parquet.

A recipe's prepare.py describes the layout of its files and the columns to make of a block of rows:

    FORMAT = TextFormat({"label": INTEGER, "price": NUMBER, "shop": TEXT}, delimiter=",", header=True)
    DATASET = {"labels": ["label"], "dense": ["price"], "sparse": ["shop"], "split": {"kind": "every", "n": 10}}

    def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
        parts = [part for file in source_files(source, "give shop.csv") for part in text_parts(file, FORMAT, _table)]
        return write_dataset(parts, DATASET, output, options, progress)

    def _table(block: TextBlock) -> Any:
        price = block.numbers("price", missing=0.0)
        return block.table({"label": block.integers("label"), "price": price, "shop": block.ids("shop")})

Columns that are made by simple steps can be `declared`: `raw` of DATASET then also tells an exported model how to make
them of a request's fields.

A recipe may have a run.py instead, a program that `persia recipe run` starts.

Threads, bad rows, resuming after a kill, Parquet and dataset.yaml are the same for all recipes.
persia_cli.data.read.kinds defines the kinds of columns.
In persia_cli.data.prepare `text` has blocks of rows, `parts` the parts of a data set, and
`preparation` writes it.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from shutil import copyfile
from typing import Any

from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.prepare.options import PrepareOptions, PrepareReport, RecipeStamp
from persia_cli.data.prepare.preparation import Progress, write_dataset
from persia_cli.data.read.kinds import BYTES, INTEGER, NUMBER, TEXT, Kind, hexadecimal, text_of
from persia_cli.errors import DataError
from persia_cli.shipped import shipped

__all__ = [
    "DataError",
    "PrepareOptions",
    "PrepareReport",
    "Progress",
    "RawColumns",
    "Recipe",
    "find_file",
    "list_recipes",
    "load_recipe",
    "source_files",
    "write_dataset",
]

PREPARE, RUN, README = "prepare.py", "run.py", "README.md"
COPIED = (".py", ".md", ".yaml", ".csv", ".csv.gz", ".jsonl")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe in its folder."""

    name: str
    folder: Path
    title: str
    """First line of its README."""
    digest: str
    """SHA-256 of its prepare.py."""
    function: Callable[[Path, Path, PrepareOptions, Progress], PrepareReport]
    """Its `prepare(source, output, options, progress)`."""

    def prepare(self, source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
        """Make the folder `output` from the downloaded data; raises DataError."""
        stamped = replace(options, recipe=RecipeStamp(self.name, self.digest))
        return self.function(source, output, stamped, progress)


def list_recipes() -> tuple[str, ...]:
    """Return the names of all recipes, sorted."""
    return tuple(sorted(path.parent.name for path in shipped("recipes").glob(f"*/{PREPARE}")))


def list_folders() -> tuple[str, ...]:
    """Return the names of all recipes, and of data that ships without one because it needs no preparation, sorted."""
    return tuple(sorted(path.parent.name for path in shipped("recipes").glob(f"*/{README}")))


def load_recipe(name: str) -> Recipe:
    """Load a recipe by its name, or by the path of its folder; raises DataError for an unknown one."""
    folder = folder_of(name)
    path = folder / PREPARE
    if not path.is_file():
        raise DataError(f"{name} needs no preparation; persia recipe cp {name} DIR copies it")
    spec = spec_from_file_location(f"persia_recipe_{folder.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DataError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, "prepare", None)):
        raise DataError(f"{path} has no function prepare(source, output, options, progress)")
    return Recipe(folder.name, folder, title_of(folder), sha256(path.read_bytes()).hexdigest(), module.prepare)


def title_of(folder: Path) -> str:
    """Return the first line of a recipe's README."""
    return readme_of(folder).partition("\n")[0].lstrip("# ")


def readme_of(folder: Path) -> str:
    """Return the README of a recipe, empty if it has none."""
    path = folder / README
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def copy_folder(source: Path, folder: Path) -> list[Path]:
    """Copy a recipe's prepare.py, README, configuration and sample, not its data folder; returns the files made.

    Raises DataError if the folder is there already.
    """
    if folder.exists():
        raise DataError(f"{folder} exists already; name a folder that does not exist")
    try:
        folder.mkdir(parents=True)
        files = [file for file in sorted(source.iterdir()) if file.name.endswith(COPIED)]
        return [Path(copyfile(file, folder / file.name)) for file in files]
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error}") from error


def folder_of(name: str) -> Path:
    """Return the folder of a recipe, or of data that needs none; raises DataError for an unknown one."""
    if "/" in name or name.startswith("."):
        folder = Path(name).resolve()
        if not (folder / PREPARE).is_file() and not (folder / RUN).is_file():
            raise DataError(f"{name} is not a recipe: there is no {folder / PREPARE}")
        return folder
    names = list_folders()
    if name not in names:
        if (Path(name) / PREPARE).is_file():
            raise DataError(f"no recipe {name} comes with persia; give the folder of this name as ./{name}")
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there is: {', '.join(names)}"
        raise DataError(f"no recipe {name}; {hint}")
    return shipped("recipes") / name


def source_files(source: Path, remedy: str) -> list[Path]:
    """Return a file, or the visible files of a folder in natural order (day_2 before day_10).

    Raises DataError, with `remedy`, if there is none.
    """
    if not source.exists():
        raise DataError(f"{source} does not exist; {remedy}")
    if source.is_file():
        return [source]
    files = [file for file in source.iterdir() if file.is_file() and not file.name.startswith(".")]
    if not files:
        raise DataError(f"{source} is a folder without files; {remedy}")
    return sorted(
        files, key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file.name)]
    )


def find_file(source: Path, name: str, remedy: str) -> Path:
    """Return a file of a folder, plain or compressed as .gz, .bz2 or .zst; raises DataError, with `remedy`."""
    for ending in ("", ".gz", ".bz2", ".zst"):
        file = source / f"{name}{ending}"
        if file.is_file():
            return file
    raise DataError(f"{source} has neither {name} nor {name}.gz; {remedy}")


def declared(*columns: Mapping[str, Any]) -> tuple[RawColumns, ...]:
    """Return what columns are made of, in the keys of `persia_cli.config.schema.raw.RawColumns`.

    `TextBlock.made` makes them, and as `raw` of the data set they tell an exported model how to.
    """
    return tuple(RawColumns.model_validate(column) for column in columns)


def kinds_of(raw: Sequence[RawColumns]) -> dict[str, Kind]:
    """Return the kind of each field that columns are made of, in their order; raises DataError for two of one field.

    A field of which only the absence is told is a number.
    """
    kinds: dict[str, Kind] = {}
    by: dict[str, RawColumns] = {}
    for declaration in raw:
        for field in map(declaration.field_of, declaration.columns):
            kinds.setdefault(field, NUMBER)
            if declaration.read == "absence":
                continue
            kind = _kind_of(declaration, field)
            other = by.setdefault(field, declaration)
            if _kind_of(other, field) != kind:
                raise DataError(
                    f"{field} is declared as {_described(other)} and as {_described(declaration)}; declare it as one"
                )
            kinds[field] = kind
    return kinds


def _kind_of(raw: RawColumns, field: str) -> Kind:
    plain = {"integer": INTEGER, "number": NUMBER, "texts": BYTES}
    if raw.read == "text":
        return TEXT if raw.table in (None, field) else text_of(raw.table)
    return plain.get(raw.read) or hexadecimal(raw.digits)


def _described(raw: RawColumns) -> str:
    if raw.read == "text" and raw.table is not None:
        return f"text of table {raw.table}"
    return f"{raw.read} of {raw.digits or '1 to 16'} digits" if raw.read == "hexadecimal" else raw.read

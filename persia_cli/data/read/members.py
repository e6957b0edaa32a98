"""The files of a data set: those that are read, by the split that they make, and those that are left out."""

import posixpath
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import PurePosixPath

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.split import PART_NAMES, FileSplit, Part
from persia_cli.control.position import SplitName
from persia_cli.data.read.columns import prepare_command
from persia_cli.data.read.files import (
    ENDINGS,
    DataFile,
    Format,
    Listing,
    Location,
    format_of,
    is_hidden,
    is_there,
    list_files,
    nothing_there,
    of_one_format,
)
from persia_cli.errors import count

_NO_DATA = (".crc", ".md", ".yaml", ".yml", ".py", ".ipynb", ".sh", ".log", ".html", ".pdf")
"""Endings of files that lie next to data and hold none."""
_NAMES = ("license", "readme", "preparation.json")
"""Beginnings of the names of such files."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Members:
    """The files of a data set."""

    format: Format
    parts: tuple[tuple[SplitName | None, tuple[DataFile, ...]], ...]
    """The files to read, in order, by the split that they make; None if files do not make the split."""
    problems: tuple[str, ...]
    """Sentences on paths and patterns without files, and on files in both splits."""
    left_out: str
    """A clause on data files that are not read; empty if there are none."""


def members_of(dataset: ParquetDataset, places: Sequence[Location]) -> Members:
    """Find the files at a data set's paths; raises DataError for broken links and for files of several formats."""
    listings = [list_files(location) for location in places]
    split = dataset.split
    patterns: list[tuple[Part | None, str, list[Listing]]] = [(None, "", listings)]
    if isinstance(split, FileSplit):
        named: list[tuple[Part, str]] = [("train", pattern) for pattern in split.train]
        named += [("eval", pattern) for pattern in split.eval]
        named += [("test", pattern) for pattern in split.test]
        patterns = [
            (name, pattern, [list_files(location.below(pattern)) for location in places]) for name, pattern in named
        ]
    read = [listing for _, _, listings_there in patterns for listing in listings_there]
    kind, chosen = of_one_format(_files(read), dataset.format)
    among = set(chosen)
    problems = _without_files(dataset, places, listings, kind)
    parts: dict[Part | None, dict[str, DataFile]] = {}
    for name, pattern, listings_there in patterns:
        files = [file for file in _files(listings_there) if file in among]
        if not files and name is not None and not problems:
            where = ", ".join(location.path for location in places)
            there = [posixpath.basename(file.path) for file in _files(listings)]
            shown = ", ".join(there[:_SHOWN]) + (", …" if len(there) > _SHOWN else "") or "no data files"
            problems.append(
                f"dataset.split.{name}: no file below {where} matches {pattern}; there are {shown}; correct the pattern"
            )
        parts.setdefault(name, {}).update({file.path: file for file in files})
    for one, other in combinations(PART_NAMES, 2):
        if twice := sorted(set(parts.get(one, {})) & set(parts.get(other, {}))):
            more = f" and {count(len(twice) - 1, 'more file')}" if len(twice) > 1 else ""
            problems.append(
                f"{twice[0]}{more}: the file is in both splits; let dataset.split.{one} and dataset.split.{other} "
                "differ"
            )
    ordered = {name: files if name is None else dict(sorted(files.items())) for name, files in parts.items()}
    return Members(
        kind,
        # Those of the test are read by `persia eval --test` only.
        tuple((name, tuple(files.values())) for name, files in ordered.items() if name != "test"),
        tuple(problems),
        left_out(dataset.place, read, chosen),
    )


def _files(listings: Sequence[Listing]) -> tuple[DataFile, ...]:
    """Return the data files of listings in their order, each once."""
    return tuple({file.path: file for listing in listings for file in listing.files}.values())


def _without_files(
    dataset: ParquetDataset, places: Sequence[Location], listings: Sequence[Listing], kind: Format
) -> list[str]:
    """Return a sentence for each path without a file of the format."""
    problems = []
    for path, location, listing in zip(dataset.paths, places, listings, strict=True):
        if any((format_of(file.path) or kind) == kind for file in listing.files):
            continue
        remedy = "correct the path"
        if is_there(location):
            remedy += f", or name files with other endings by a wildcard, such as {path.rstrip('/')}/*"
        if dataset.recipe is not None and "://" in dataset.recipe:
            remedy += f", or fetch the files from {dataset.recipe}"
        elif dataset.recipe is not None:
            remedy += f", or prepare the data first: {prepare_command(dataset)}"
        problems.append(f"dataset.path={nothing_there(path, location, dataset.format)}; {remedy}")
    return problems


def left_out(place: str, listings: Sequence[Listing], chosen: Collection[DataFile]) -> str:
    """Return a clause on the files in listings that are not read, except those that systems leave next to data.

    Runs and sweeps in the folders are named too.
    """
    read = {file.path for file in chosen}
    found = (path for listing in listings for path in (*(file.path for file in listing.files), *listing.others))
    others = dict.fromkeys(path for path in found if path not in read and _may_be_data(PurePosixPath(path).name))
    runs = dict.fromkeys(path for listing in listings for path in listing.runs)
    clauses = [f"{count(len(runs), 'run')} of persia in {place} ({_shown(runs)})"] if runs else []
    if others:
        clauses.append(f"{count(len(others), 'file')} of {place} ({_shown(others)}); files that a path names are read")
    return "; ".join(clauses)


def _shown(paths: Collection[str]) -> str:
    """Return the names of the first paths."""
    names = [PurePosixPath(path).name for path in paths]
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _may_be_data(name: str) -> bool:
    """Return True for the name of a file that may hold data; hidden ones do if they have an ending of data."""
    if name.lower().endswith(ENDINGS):
        return True
    return not (is_hidden(name) or name.lower().endswith(_NO_DATA) or name.lower().startswith(_NAMES))

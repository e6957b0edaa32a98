"""The files that a data set's path means, on any file system that pyarrow reads."""

import glob
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from pyarrow import fs

from persia_cli.config.record import CONFIG, JOB, SWEEP
from persia_cli.data.tables.snapshots import Snapshot, snapshot_of
from persia_cli.data.tables.table import opened_places
from persia_cli.errors import DataError
from persia_cli.shipped import shipped
from persia_cli.storage.addresses import BUILTIN, local_path, open_uri, plain_uri
from persia_cli.storage.remote import LISTING_DEADLINE_S, ask

Format = Literal["parquet", "csv", "jsonl"]

SUFFIXES: dict[Format, tuple[str, ...]] = {
    "parquet": (".parquet", ".parq", ".pq"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson"),
}
"""The endings of file names that a search of folders finds."""
NOUNS: dict[Format, str] = {"parquet": "Parquet", "csv": "CSV", "jsonl": "JSON Lines"}
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Compression of text files by the last ending of their names."""
ENDINGS = (
    *SUFFIXES["parquet"],
    *(f"{text}{packed}" for text in SUFFIXES["csv"] + SUFFIXES["jsonl"] for packed in ("", *CODECS)),
)
"""The endings of the file names that a search of folders finds."""
_WILDCARDS = frozenset("*?[")
_NO_DATA = (frozenset({CONFIG, JOB}), frozenset({SWEEP}))
"""The files by which the folders of runs and of sweeps are known."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file: its path on its file system, and its size."""

    path: str
    nbytes: int
    source: str | None = None
    """The text file that it was converted from."""

    @property
    def name(self) -> str:
        """The path that users know."""
        return self.source or self.path


@dataclass(frozen=True, slots=True)
class Listing:
    """The files at a location, sorted by path."""

    files: tuple[DataFile, ...]
    """Data files, by their endings; a file that the location names itself has any ending."""
    others: tuple[str, ...] = ()
    """Paths of the other files in its folders; hidden folders are not looked into."""
    runs: tuple[str, ...] = ()
    """Paths of the folders of runs and sweeps, which are not looked into either."""


@dataclass(frozen=True, slots=True)
class Location:
    """A file, folder or wildcard on a file system."""

    filesystem: Any
    path: str
    uri: str | None = None
    """The URI that names it, if it is on other machines."""
    members: tuple[DataFile, ...] | None = None
    """The files of a table, sorted by path; a table's folder may have others."""

    def below(self, pattern: str) -> "Location":
        """Return the location of a path relative to this one; raises DataError for a table."""
        if self.members is not None:
            raise DataError(
                f"dataset.split: the files of a table ({self.path}) have names that mean nothing and change; split by "
                "a column, by time or by a share of the rows"
            )
        root = self.path if self.is_pattern else glob.escape(self.path)
        return Location(self.filesystem, f"{root.rstrip('/')}/{pattern}", self.uri)

    @property
    def is_pattern(self) -> bool:
        """True if the path holds wildcards, and is not the name of a file or folder of this machine, or of a table."""
        if self.members is not None:
            return False
        return not _WILDCARDS.isdisjoint(self.path) and (self.uri is not None or not os.path.lexists(self.path))

    @property
    def folder(self) -> str:
        """The path, up to the first part with a wildcard."""
        parts = takewhile(_WILDCARDS.isdisjoint, self.path.split("/")) if self.is_pattern else [self.path]
        return "/".join(parts)


def locate(path: str, key: str = "dataset.path") -> Location:
    """Find the file system of a path, a URI, `builtin:NAME` or a table; raises DataError, naming `key`, for others."""
    if (table := snapshot_of(path)) is not None:
        return _located(table)
    if path.startswith(BUILTIN):
        return Location(fs.LocalFileSystem(), str(_builtin(path.removeprefix(BUILTIN))))
    if "://" not in path:
        return Location(fs.LocalFileSystem(), str(local_path(path).absolute()))
    try:
        filesystem, inner = open_uri(path)
    except (ValueError, NotImplementedError) as error:
        raise DataError(f"{key}={path} is not a place pyarrow can open: {error}") from error
    return Location(filesystem, inner, None if isinstance(filesystem, fs.LocalFileSystem) else plain_uri(path))


def _located(table: Snapshot) -> Location:
    """Return the location of a table at a snapshot."""
    places = [table.root, *(file.place for file in table.files)]
    filesystem, (root, *paths), uri = opened_places(places, table.path)
    files = (DataFile(path, file.nbytes) for path, file in zip(paths, table.files, strict=True))
    return Location(filesystem, root, uri, tuple(sorted(files, key=lambda file: file.path)))


def find_files(location: Location) -> tuple[DataFile, ...]:
    """Return the data files that a location means, sorted by path; empty if there are none. Raises as `list_files`."""
    return list_files(location).files


def list_files(location: Location) -> Listing:
    """Return the files that a location means; raises DataError for a folder that cannot be listed, or broken links.

    A folder means the Parquet, CSV and JSON Lines files in and below it; a wildcard means the files and folders that it
    matches. Names that start with a dot or an underscore are hidden, as is usual for metadata. Folders of runs and of
    sweeps are passed over, but not the one that the location names itself.
    """
    if location.members is not None:
        return Listing(location.members)
    if location.uri is not None:
        # A store that does not answer at all is known sooner than a listing can take.
        ask(location.uri, partial(location.filesystem.get_file_info, location.folder))
        return ask(location.uri, partial(_listed, location), LISTING_DEADLINE_S)
    return _listed(location)


def nothing_there(path: str, location: Location, wanted: Literal["auto"] | Format) -> str:
    """Return a clause on a path where no file of the wanted format was found."""
    where = "" if location.path == path else f" (that is {location.path})"
    noun = "Parquet, CSV or JSON Lines" if wanted == "auto" else NOUNS[wanted]
    if location.uri is not None or location.is_pattern:
        return f"{path}{where} does not exist or has no {noun} file"
    return (
        f"{path}{where} has no {noun} file, by the files' names"
        if is_there(location)
        else f"{path}{where} does not exist"
    )


def is_there(location: Location) -> bool:
    """Return True for a file or folder of this machine; places elsewhere and patterns are not looked at."""
    return location.uri is None and not location.is_pattern and Path(location.path).exists()


def without_rows(kind: Format) -> str:
    """Return a clause on files of a format that hold no rows."""
    if kind == "csv":
        return "the files hold a header alone, and no rows; give files with rows"
    return "the files hold no rows; prepare them again"


def _listed(location: Location) -> Listing:
    try:
        infos = list(_matches(location)) if location.is_pattern else [location.filesystem.get_file_info(location.path)]
        files: dict[str, DataFile] = {}
        others: dict[str, None] = {}
        runs: dict[str, None] = {}
        for info in infos:
            if info.type == fs.FileType.File:
                files[info.path] = DataFile(info.path, info.size)
            elif info.type == fs.FileType.Directory:
                if isinstance(location.filesystem, fs.LocalFileSystem):
                    _refuse_bad_links(info.path, location)
                below = list(_listing(location.filesystem, info.path))
                inner = _runs(info.path for info in below) - (set() if location.is_pattern else {info.path})
                runs |= dict.fromkeys(inner)
                for entry in below:
                    if entry.type != fs.FileType.File or not inner.isdisjoint(_parents(entry.path)):
                        continue
                    if entry.path.lower().endswith(ENDINGS) and not is_hidden(entry.base_name):
                        files[entry.path] = DataFile(entry.path, entry.size)
                    else:
                        others[entry.path] = None
    except OSError as error:
        if location.uri is not None:
            raise
        raise DataError(f"cannot list {location.path}: {error}") from error
    unread = tuple(sorted(others.keys() - files.keys()))
    return Listing(tuple(files[path] for path in sorted(files)), unread, tuple(sorted(runs)))


def _runs(paths: Iterable[str]) -> set[str]:
    """Return the outermost folders of runs and sweeps among those that hold these files."""
    names: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        names.setdefault(folder, set()).add(name)
    runs = {folder for folder, names_there in names.items() if _is_run(names_there)}
    return {folder for folder in runs if runs.isdisjoint(_parents(folder))}


def _is_run(names: Collection[str]) -> bool:
    """Return True for the names of the files in the folder of a run or a sweep, which holds no data set."""
    return any(names_of_run <= set(names) for names_of_run in _NO_DATA)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _refuse_bad_links(folder: str, location: Location) -> None:
    """Raise DataError for a link in a local folder that leads nowhere, or to a folder that it is in."""
    for root, folders, names in os.walk(folder):
        if (root != folder or location.is_pattern) and _is_run(names):
            folders.clear()
            continue
        folders[:] = [name for name in folders if not is_hidden(name)]
        real = Path(root).resolve()
        for path in (Path(root, name) for name in [*folders, *names] if not is_hidden(name)):
            if not path.is_symlink():
                continue
            if not path.exists():
                raise DataError(f"{path} is a link to {path.readlink()}, which does not exist; correct or remove it")
            if real.is_relative_to(path.resolve()):
                raise DataError(f"{path} is a link to a folder that it is in, whose files would repeat; remove it")


def locate_all(paths: Sequence[str]) -> tuple[Location, ...]:
    """Find the file system that several paths have in common; raises DataError if they have none, or as `locate`."""
    places = tuple(locate(path) for path in paths)
    for path, location in zip(paths, places, strict=True):
        if not location.filesystem.equals(places[0].filesystem):
            raise DataError(f"dataset.path: {paths[0]} and {path} are on different file systems; copy one to the other")
    return places


def _builtin(name: str) -> Path:
    root = shipped("recipes")
    folder = root / name / "data"
    if "/" not in name and folder.is_dir():
        return folder
    names = sorted(path.parent.name for path in root.glob("*/data"))
    near = get_close_matches(name, names, 1)
    hint = f"did you mean builtin:{near[0]}?" if near else f"there is: {', '.join(names)}"
    raise DataError(f"no data set builtin:{name} comes with persia; {hint}")


def _matches(location: Location) -> Iterable[Any]:
    parts = location.path.split("/")
    for info in _listing(location.filesystem, location.folder or "/"):
        parts_of_path = info.path.split("/")
        if (
            len(parts_of_path) == len(parts)
            and all(map(fnmatchcase, parts_of_path, parts))
            and not is_hidden(parts_of_path[-1])
        ):
            yield info


def _listing(filesystem: Any, folder: str) -> Iterable[Any]:
    """Yield the files and folders below a folder, except what is in hidden folders."""
    selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
    depth = len([part for part in folder.split("/") if part])
    for info in filesystem.get_file_info(selector):
        below = [part for part in info.path.split("/") if part][depth:]
        if not any(is_hidden(part) for part in below[:-1]):
            yield info


def is_hidden(name: str) -> bool:
    """Return True for names that systems give to files and folders without data; `_day=1` is a column's value."""
    return name.startswith((".", "_")) and "=" not in name


def format_of(path: str) -> Format | None:
    """Return the format that a file name stands for; None if its ending is unknown."""
    plain = path.lower()
    for ending in CODECS:
        plain = plain.removesuffix(ending)
    if plain.endswith(".json"):
        return "jsonl"
    formats = (name for name, endings in SUFFIXES.items() if plain.endswith(endings))
    return next(formats, None)


def of_one_format(
    files: Sequence[DataFile],
    wanted: Literal["auto"] | Format,
    remedy: str = "set dataset.format to the one to read, or name the files in dataset.path",
) -> tuple[Format, tuple[DataFile, ...]]:
    """Return the wanted format and its files; with `auto` that of all files. Raises DataError if they have several.

    A file with an unknown ending, which the user has named, has the wanted format; Parquet for `auto`.
    """
    default: Format = "parquet" if wanted == "auto" else wanted
    format_by_path = {file.path: format_of(file.path) or default for file in files}
    first: dict[Format, str] = {}
    for path, kind in format_by_path.items():
        first.setdefault(kind, path)
    if wanted == "auto" and len(first) > 1:
        formats = ", ".join(f"{NOUNS[kind]} ({Path(path).name})" for kind, path in first.items())
        raise DataError(f"the data has files of several formats: {formats}; {remedy}")
    chosen = next(iter(first), default) if wanted == "auto" else wanted
    return chosen, tuple(file for file in files if format_by_path[file.path] == chosen)

"""Which files a data set's path means, on any file system that pyarrow reads."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pyarrow import fs

from persia_cli.config.schema.dataset import BUILTIN
from persia_cli.errors import DataError
from persia_cli.share import shared

_SUFFIXES = (".parquet", ".pq")
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file, by its path on its file system, and its size."""

    path: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Location:
    """A file, folder or wildcard on a file system."""

    filesystem: Any
    path: str

    def below(self, pattern: str) -> "Location":
        """Return a place relative to this one."""
        return Location(self.filesystem, f"{self.path.rstrip('/')}/{pattern}")

    @property
    def is_pattern(self) -> bool:
        """Whether the path holds wildcards."""
        return not _WILDCARDS.isdisjoint(self.path)


def locate(path: str) -> Location:
    """Find the file system of a path, a URI or `builtin:NAME`; raises DataError for one that makes no sense."""
    if path.startswith(BUILTIN):
        return Location(fs.LocalFileSystem(), str(_builtin(path.removeprefix(BUILTIN))))
    if "://" not in path:
        return Location(fs.LocalFileSystem(), str(Path(path).expanduser().absolute()))
    try:
        filesystem, inner = fs.FileSystem.from_uri(path)
    except (OSError, ValueError) as error:
        raise DataError(f"dataset.path={path} is not a place pyarrow can open: {error}") from error
    return Location(filesystem, inner)


def find_files(place: Location) -> tuple[DataFile, ...]:
    """Return the data files a place means, sorted by path; empty where there are none.

    A folder means the Parquet files in and below it; a wildcard means what it matches, folders included. What starts
    with a dot or an underscore is ignored, as is usual for hidden files and metadata.
    """
    try:
        infos = _matches(place) if place.is_pattern else [place.filesystem.get_file_info(place.path)]
        found: dict[str, DataFile] = {}
        for info in infos:
            if info.type == fs.FileType.File:
                found[info.path] = DataFile(info.path, info.size)
            elif info.type == fs.FileType.Directory:
                found.update({file.path: file for file in _folder(place.filesystem, info.path)})
    except OSError as error:
        raise DataError(f"cannot list {place.path}: {error}") from error
    return tuple(found[path] for path in sorted(found))


def exists(place: Location) -> bool:
    """Whether a place holds any data file at all."""
    return bool(find_files(place))


def _builtin(name: str) -> Path:
    root = shared("recipes")
    folder = root / name / "data"
    if "/" not in name and folder.is_dir():
        return folder
    names = sorted(path.parent.name for path in root.glob("*/data"))
    near = get_close_matches(name, names, 1)
    hint = f"did you mean builtin:{near[0]}?" if near else f"there is: {', '.join(names)}"
    raise DataError(f"no data set builtin:{name} comes with persia; {hint}")


def _folder(filesystem: Any, path: str) -> Iterable[DataFile]:
    for info in _listing(filesystem, path):
        if info.type == fs.FileType.File and info.path.endswith(_SUFFIXES):
            yield DataFile(info.path, info.size)


def _matches(place: Location) -> Iterable[Any]:
    parts = place.path.split("/")
    first = next(i for i, part in enumerate(parts) if not _WILDCARDS.isdisjoint(part))
    for info in _listing(place.filesystem, "/".join(parts[:first]) or "/"):
        own = info.path.split("/")
        if len(own) == len(parts) and all(map(fnmatchcase, own, parts)):
            yield info


def _listing(filesystem: Any, folder: str) -> Iterable[Any]:
    """Yield files and folders below a folder, unless a part of their path below it is hidden."""
    selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
    depth = len([part for part in folder.split("/") if part])
    for info in filesystem.get_file_info(selector):
        below = [part for part in info.path.split("/") if part][depth:]
        if not any(part.startswith((".", "_")) for part in below):
            yield info

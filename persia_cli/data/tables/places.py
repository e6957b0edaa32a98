"""The files of tables: their places as tables write them, on a file system and as `dataset.path` has them.

A *place* is a local path or SCHEME://HOST/PATH whose characters stand for themselves, also a percent sign.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from pyarrow import fs

from persia_cli.errors import DataError, PersiaError, one_line
from persia_cli.storage.addresses import open_uri, plain_uri
from persia_cli.storage.remote import LISTING_DEADLINE_S, ask, without_secret

_REMOTE = re.compile(r"([A-Za-z][\w+.-]*://[^/]+)(/.*|)")

Result = TypeVar("Result")


class TableFile(NamedTuple):
    """A Parquet file of a table, which does not change."""

    place: str
    nbytes: int
    arrived: float
    """The time of the snapshot that added it, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one moment."""

    path: str
    """The table's path with the snapshot, as `dataset.path` has it."""
    root: str
    """The place of the table."""
    files: tuple[TableFile, ...]
    """Its files in their order of arrival."""


def divided(place: str) -> tuple[str, str]:
    """Return SCHEME://HOST of a place, empty for a local one, and the path there."""
    if place.startswith("file:"):
        return "", "/" + place.removeprefix("file:").lstrip("/")
    found = _REMOTE.fullmatch(plain_uri(place))
    return ("", place) if found is None else (found[1], found[2])


def address_of_file(place: str) -> str:
    """Return the path or URI of a place, as `dataset.path` has it."""
    host, path = divided(place)
    return host + quote(path) if host else path


def opened_places(places: Sequence[str], table: str) -> tuple[Any, list[str], str | None]:
    """Return the file system that places of a table are on, their paths there, and its URI if it is elsewhere.

    Raises DataError if they are on several, or pyarrow cannot open it.
    """
    parts = list(map(divided, places))
    hosts = sorted({host for host, _ in parts})
    if len(hosts) > 1:
        shown = " and ".join(host or "this machine" for host in hosts)
        raise DataError(f"dataset.path={table} has files in {shown}; copy the table into one place")
    if not hosts[0]:
        return fs.LocalFileSystem(), [path for _, path in parts], None
    try:
        filesystem, inner = open_uri(f"{hosts[0]}/")
    except (ValueError, NotImplementedError) as error:
        raise DataError(f"dataset.path={table} has files in {hosts[0]}, which pyarrow cannot open: {error}") from error
    return filesystem, [inner.rstrip("/") + path for _, path in parts], hosts[0]


def asked(path: str, library: str, call: Callable[[], Result]) -> Result:
    """Return the result of a call of a table's library, within a deadline; raises DataError, naming the table.

    Errors of these libraries, and of the databases and services they reach, have no common base class.
    """
    return ask(path, partial(_called, path, library, call), LISTING_DEADLINE_S)


def _called(path: str, library: str, call: Callable[[], Result]) -> Result:
    try:
        return call()
    except PersiaError:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        extra = path.partition(":")[0]
        raise DataError(
            f"dataset.path={path} needs {library}, which is not installed: pip install 'persia-cli[{extra}]'"
        ) from error
    except Exception as error:
        raise DataError(f"dataset.path={path}: {library} cannot read it ({without_secret(one_line(error))})") from error

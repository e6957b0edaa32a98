"""Tables of any format, as Parquet files that come with commits, and the places of these files.

A *place* is a local path or SCHEME://HOST/PATH whose characters stand for themselves, also a percent sign.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from pyarrow import fs

from persia_cli.config.schema.follow import Trap
from persia_cli.errors import DataError, PersiaError, one_line
from persia_cli.storage.addresses import open_uri, plain_uri
from persia_cli.storage.remote import LISTING_DEADLINE_S, ask, without_secret

BEGIN_AGAIN = "begin a new run with this model, by init_from"
_LIBRARIES = {"iceberg": "pyiceberg", "delta": "deltalake", "hf": "huggingface_hub"}
"""The library of each extra, which has the name that a path begins with."""
_REMOTE = re.compile(r"([A-Za-z][\w+.-]*://[^/]+)(/.*|)")
_AT = re.compile(r"(?P<name>.+?)(?:@(?P<number>[0-9]+))?")

Result = TypeVar("Result")
OnTrap = Callable[[Trap, str], None]
"""Called with a trap and a sentence; it raises an error, or the trap is passed over."""


class TableFile(NamedTuple):
    """A Parquet file of a table, which does not change."""

    place: str
    nbytes: int
    arrived: float
    """The time of the commit that added it, in seconds since 1970."""


class FileTable(Protocol):
    """A table as its catalog or log has it now; all calls wait for stores, and raise errors of its library.

    A *commit* is the number of a snapshot or version.
    """

    @property
    def root(self) -> str:
        """The place of the table."""

    def present(self) -> int | None:
        """Return the present commit; None if nothing was ever written."""

    def files(self, commit: int, on_trap: OnTrap) -> Sequence[TableFile]:
        """Return all files at a commit, in their order of arrival."""

    def later(self, commit: int, on_trap: OnTrap) -> Sequence[int]:
        """Return the commits after one, in their order; raises DataError if the table was set back."""

    def added(self, commit: int, on_trap: OnTrap) -> Sequence[TableFile]:
        """Return the files that a commit added, sorted; none of one that does something else."""


def refuse(trap: Trap, text: str) -> NoReturn:
    """Raise DataError with the sentence on a trap."""
    raise DataError(text)


def name_and_number(path: str) -> tuple[str, int | None]:
    """Return the path of a table without its commit, and that."""
    found = _AT.fullmatch(path)
    if found is None:
        raise DataError(f"dataset.path={path} names no table; write its name after the colon")
    return found["name"], None if found["number"] is None else int(found["number"])


def divided(place: str) -> tuple[str, str]:
    """Return SCHEME://HOST of a place, empty for a local one, and the path there."""
    if place.startswith("file:"):
        return "", "/" + place.removeprefix("file:").lstrip("/")
    found = _REMOTE.fullmatch(plain_uri(place))
    return ("", place) if found is None else (found[1], found[2])


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


def asked(path: str, call: Callable[[], Result]) -> Result:
    """Return the result of a call of a table's library, within a deadline; raises DataError, naming the table.

    Errors of these libraries, and of the databases and services they reach, have no common base class.
    """
    return ask(path, partial(_called, path, call), LISTING_DEADLINE_S)


def _called(path: str, call: Callable[[], Result]) -> Result:
    extra = path.partition(":")[0]
    try:
        return call()
    except PersiaError:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != _LIBRARIES[extra]:
            raise
        raise DataError(
            f"dataset.path={path} needs {error.name}, which is not installed: pip install 'persia-cli[{extra}]'"
        ) from error
    except Exception as error:
        text = without_secret(one_line(error))
        raise DataError(f"dataset.path={path}: {_LIBRARIES[extra]} cannot read it ({text})") from error

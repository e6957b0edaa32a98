"""Planners: which files of data that grows come after a cursor, in their order of arrival.

A *cursor* is a short text that only its planner understands, such as the name of the last file of a folder; that of
each file is the position after it. `poll` of a planner returns at most so many files after a cursor, the first of all
for None. It reads no rows, is used on one thread, and waits for disks and stores.
"""

# Invariants:
#
# - The files after a cursor only get more at their end: a second call has the files of the first one, and then others.
# - What would break that is a trap: a DataError of one sentence, or, where `dataset.follow.skip` has its kind, a
#   sentence of the plan.

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from posixpath import relpath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.follow import Trap
from persia_cli.data.read.files import SUFFIXES, find_files, locate
from persia_cli.data.tables.snapshots import TABLES, open_table
from persia_cli.data.tables.table import BEGIN_AGAIN, OnTrap, asked, name_and_number
from persia_cli.errors import DataError, count

_CURSOR = re.compile(r"(all )?(\d+) (\d+)/(\d+)")


class NewFile(NamedTuple):
    """A file that has come whole and does not change any more."""

    path: str
    """Its path on the file system of `dataset.path`, or its place in a table."""
    cursor: str
    """The cursor after this file."""
    arrived: float
    """Its arrival, in seconds since 1970: the time of its last write, or that of the snapshot that added it."""


class Plan(NamedTuple):
    """The files after a cursor."""

    files: Sequence[NewFile]
    skipped: Sequence[str] = ()
    """A sentence on each trap that was passed over."""


def passed_over(trap: Trap, skip: Collection[Trap], text: str) -> str:
    """Return the sentence on a trap that is to be passed over; raise DataError for another."""
    if trap not in skip:
        raise DataError(f"{text}, or pass over such cases: dataset.follow.skip=[{trap}]")
    return f"passed over ({trap}): {text}"


def planner_of(dataset: ParquetDataset, trained: Callable[[], Iterable[str]] = tuple) -> "TablePlanner | FolderPlanner":
    """Return the planner of a data set's path.

    `trained` returns the paths of the files that the run's record has, for the first poll after a resume. Raises
    DataError for a place that cannot be followed.
    """
    assert dataset.follow is not None
    [path] = dataset.paths
    if path.startswith(TABLES):
        return TablePlanner(path, dataset.follow.skip)
    return FolderPlanner(path, dataset.follow.skip, trained)


class TablePlanner:
    """The planner of a table, whose files come with its commits; whatever is no addition of files is a trap.

    A cursor is `COMMIT TAKEN/TOTAL`: so many of the files of a commit are taken. `all …` means all files of the
    table at this commit, with which a first poll begins. Within a commit, files are in the order of their names.
    """

    def __init__(self, path: str, skip: Collection[Trap] = ()) -> None:
        self._path, self._skip = path, skip
        if name_and_number(path)[1] is not None:
            raise DataError(f"dataset.path={path} is a table at one snapshot, which does not grow; leave it out")
        self._reported: set[str] = set()
        """Sentences on traps that were passed over."""

    def poll(self, cursor: str | None, most: int) -> Plan:
        skipped: list[str] = []
        files = asked(
            self._path,
            lambda: self._after(cursor, most, lambda trap, text: skipped.append(passed_over(trap, self._skip, text))),
        )
        new = [text for text in dict.fromkeys(skipped) if text not in self._reported]
        self._reported.update(new)
        return Plan(files, new)

    def _after(self, cursor: str | None, most: int, on_trap: OnTrap) -> list[NewFile]:
        table = open_table(self._path)
        if cursor is not None:
            whole, commit, taken, total = _parsed(cursor)
        elif (present := table.present()) is not None:
            whole, commit, taken, total = "all ", present, 0, 1
        else:
            return []
        found: list[NewFile] = []
        for each in [*([commit] if taken < total else []), *table.later(commit, on_trap)]:
            if len(found) >= most:
                break
            if each != commit:
                whole, taken = "", 0
            files = table.files(each, on_trap) if whole else table.added(each, on_trap)
            for number, file in enumerate(files[taken:], taken + 1):
                after = f"{whole}{each} {number}/{len(files)}"
                found.append(NewFile(file.place, after, file.arrived))
        return found[:most]


def _parsed(cursor: str) -> tuple[str, int, int, int]:
    """Return the parts of a cursor of a table; raises DataError for the cursor of other data."""
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise DataError(f"{cursor!r} is no position in a table: the run began with other data; {BEGIN_AGAIN}")
    return found[1] or "", int(found[2]), int(found[3]), int(found[4])


class FolderPlanner:
    """The planner of a folder, local or in a store, whose files come in the order of their names.

    The cursor is the name of the last file, relative to the folder. It keeps 8 bytes for each file that is there.
    """

    def __init__(self, path: str, skip: Collection[Trap] = (), trained: Callable[[], Iterable[str]] = tuple) -> None:
        self._path, self._place, self._skip, self._trained = path, locate(path), skip, trained
        if self._place.is_pattern:
            raise DataError(f"dataset.path={path} has wildcards, and dataset.follow is of a folder; name the folder")
        self._known: NDArray[np.uint64] | None = None
        """Sorted hashes of the names that are trained or passed over and were there at the last poll."""

    def poll(self, cursor: str | None, most: int) -> Plan:
        files = {relpath(file.path, self._place.path): file.path for file in find_files(self._place)}
        fit = [name for name in files if name.lower().endswith(SUFFIXES["parquet"])]
        after = 0 if cursor is None else bisect_right(fit, cursor)
        if self._known is None:
            trained = np.unique(_hashes(relpath(path, self._place.path) for path in self._trained()))
            # Nothing is known of a run whose record is lost; all files up to the cursor count as trained.
            self._known = trained if trained.size or cursor is None else np.unique(_hashes(fit[:after]))
        unfit, skipped = sorted(files.keys() - set(fit)), []
        if late := self._unknown(fit[:after]):
            more = f" and {count(len(late) - 1, 'more file')}" if len(late) > 1 else ""
            text = (
                f"{late[0]}{more} in {self._path} came after {cursor}, which is trained already, but files come in the "
                "order of their names; give it a later name"
            )
            skipped.append(passed_over("late_file", self._skip, text))
        for name in self._unknown(unfit):
            text = f"{name} in {self._path} is no Parquet file; move it away"
            skipped.append(passed_over("unfit_file", self._skip, text))
        new = fit[after : after + most]
        infos = self._place.filesystem.get_file_info([files[name] for name in new]) if new else []
        found = []
        for name, info in zip(new, infos, strict=True):
            arrived = time.time() if info.mtime_ns is None else info.mtime_ns / 1e9
            found.append(NewFile(files[name], name, arrived))
        self._known = np.unique(_hashes([*fit[: after + most], *unfit]))
        return Plan(found, skipped)

    def _unknown(self, names: Sequence[str]) -> list[str]:
        assert self._known is not None
        return [names[at] for at in np.flatnonzero(~np.isin(_hashes(names), self._known)).tolist()]


def _hashes(names: Iterable[str]) -> NDArray[np.uint64]:
    return np.fromiter((xxh64_intdigest(name.encode()) for name in names), np.uint64)

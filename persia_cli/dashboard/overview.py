"""The rows of the list that have changed, within a bounded time; the cache of all rows."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from persia_cli.config.record import CONFIG
from persia_cli.dashboard.folder import Folder
from persia_cli.dashboard.rows import RunRow, best_of, read_row
from persia_cli.errors import UserError
from persia_cli.observe.history import ENDS
from persia_cli.observe.journal import EVENTS, METRICS

BUDGET_S = 0.2
"""Seconds for which whole journals are read before the rows so far are sent."""


LOOK_S = 3.0
"""Seconds after which the state of a run that writes nothing is looked at again."""
Signature = tuple[int, int, float]
"""Inode, size and time of a file."""


class _Cached(NamedTuple):
    row: RunRow
    seen: tuple[Signature | None, ...]
    is_whole: bool
    read_s: float


class Overview:
    """Rows of runs for any number of pages. Each call is safe in a thread of its own."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._cache: dict[str, _Cached] = {}

    def changes(self, sent: dict[str, RunRow], sweep: str | None) -> dict[str, Any]:
        """Return the rows that differ from those `sent` before, which are updated, and the names that are gone.

        A run is first read from its ends only, so that all appear at once; later calls read whole records.
        """
        names = self._folder.runs(sweep)
        spent_s, rows = 0.0, []
        for name in names:
            begin, may_read = time.monotonic(), name in sent and spent_s < BUDGET_S
            row = self.row(name, may_read)
            spent_s += (time.monotonic() - begin) * may_read
            if sent.get(name) != row:
                sent[name] = row
                rows.append(row)
        gone = sorted(sent.keys() - set(names))
        for name in gone:
            del sent[name]
            self._cache.pop(name, None)
        read = {name for name, cached in self._cache.copy().items() if cached.is_whole}
        return {"rows": rows, "gone": gone, "unread": sum(name not in read for name in names)}

    def row(self, name: str, may_read: bool) -> RunRow:
        """Return the row of a run; its whole record is read once, if it `may` be, and then only what is new."""
        path, cached = self._folder.root / name, self._cache.get(name)
        seen = tuple(_signature(path / file) for file in (CONFIG, METRICS, EVENTS))
        is_whole = cached is not None and cached.is_whole and _inodes(seen) == _inodes(cached.seen)
        whole = may_read and not is_whole
        now = time.time()
        is_old = cached is not None and cached.row.state not in ENDS and now - cached.read_s > LOOK_S
        if cached is None or whole or is_old or cached.seen != seen:
            try:
                row = read_row(self._folder.run(name), name, now, whole)
            except UserError as error:
                row = RunRow(name, "damaged", str(error))
            if is_whole and cached and cached.row.best and (not row.best or row.best[0] == cached.row.best[0]):
                row = replace(row, best=best_of([cached.row.best, row.best]))
            cached = self._cache[name] = _Cached(row, seen, is_whole or whole, now)
        return cached.row


def _inodes(seen: Sequence[Signature | None]) -> list[int | None]:
    return [found and found[0] for found in seen]


def _signature(path: Path) -> Signature | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime
    return None

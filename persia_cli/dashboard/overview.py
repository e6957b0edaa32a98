"""The rows of the list that have changed, within a bounded time; the cache of all rows."""

import threading
import time
from typing import Any

from persia_cli.dashboard.folder import Folder
from persia_cli.dashboard.watched import RunRow, WatchedRun, glance

BUDGET_S = 0.2
"""Seconds for which whole journals are read before the rows so far are sent."""


class Overview:
    """Rows of runs for any number of pages, which share what has been read."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._watched: dict[str, WatchedRun] = {}
        self._lock = threading.Lock()

    def row(self, name: str) -> RunRow:
        """Return the row of a run."""
        with self._lock:
            return self._watch(name)

    def changes(self, sent: dict[str, RunRow], sweep: str | None) -> dict[str, Any]:
        """Return the rows that differ from those `sent` before, which are updated, and the names that are gone.

        A run is first read from its end only, so that all appear at once; later calls read whole records.
        """
        names = self._folder.runs(sweep)
        begin, left, rows = time.monotonic(), 0, []
        with self._lock:
            for name in names:
                is_new, is_watched = name not in sent, name in self._watched
                if not (is_new or is_watched) and time.monotonic() - begin > BUDGET_S:
                    left += 1
                    continue
                row = self._watch(name) if is_watched or not is_new else glance(self._folder, name)
                left += is_new and not is_watched
                if sent.get(name) != row:
                    sent[name] = row
                    rows.append(row)
        gone = sent.keys() - set(names)
        for name in gone:
            del sent[name]
            self._watched.pop(name, None)
        return {"rows": rows, "gone": sorted(gone), "unread": left}

    def _watch(self, name: str) -> RunRow:
        return self._watched.setdefault(name, WatchedRun(self._folder, name)).row(time.time())

"""What servers' accounts say: how often each update is applied in the model, and what was taken back on the way."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from persia_cli.roles import update_account as written
from persia_cli.roles.update_account import APPLIED, BEGUN, FRESH, KEPT, KNOWN, OPENED

ENTRY = np.dtype([("kind", "<u2"), ("rank", "<u2"), ("_", "<u4"), ("step", "<i8"), ("ns", "<i8"), ("number", "<i8")])

Update = tuple[int, int]
"""Rank and step."""


@dataclass
class ServerAccount:
    """What is in the model of one server, by its account."""

    name: str
    applied: Counter[Update] = field(default_factory=Counter)
    """How often each update that is in the model was applied."""
    before: dict[int, int] = field(default_factory=dict)
    """For each rank the step up to which updates were applied before the account began."""
    known: set[Update] = field(default_factory=set)
    """Updates above that step which were applied before the account began."""
    taken_back: set[Update] = field(default_factory=set)
    """Updates that were applied, and are not in the model any more, or only since they were applied again."""
    left_out: int = 0
    """Entries for which the account had no room."""
    processes: int = 0
    first_s: dict[Update, float] = field(default_factory=dict)
    """When each update was applied first, in seconds since 1970."""
    last_s: dict[Update, float] = field(default_factory=dict)
    """When it was applied last."""

    def twice(self) -> list[Update]:
        """Return the updates that are in the model more than once."""
        again = {update for update in self.applied if self._was_known(update)}
        return sorted(again | {update for update, times in self.applied.items() if times > 1})

    def missing(self, rank: int, first: int, last: int) -> list[Update]:
        """Return the updates of a rank of the steps [first, last) that are not in the model."""
        steps = ((rank, step) for step in range(first, last))
        return [update for update in steps if update not in self.applied and not self._was_known(update)]

    def _was_known(self, update: Update) -> bool:
        return update[1] <= self.before.get(update[0], -1) or update in self.known

    def begin_anew(self, base: int) -> None:
        """Take back what came after a step: a process has begun with the rows of that step."""
        for update in [each for each in self.applied if each[1] > base]:
            del self.applied[update]
            self.taken_back.add(update)
        gone = {update for update in self.known if update[1] > base}
        self.known -= gone
        self.taken_back |= gone
        for rank, step in self.before.items():
            if step > base:
                self.taken_back |= {(rank, each) for each in range(base + 1, step + 1)}
                self.before[rank] = base


def read_entries(path: Path) -> tuple[NDArray[np.void], int]:
    """Return the whole entries of an account's file, and the number of those that had no room; none if it is not there.

    The file may be written meanwhile, and its process may be killed at any moment.
    """
    try:
        with path.open("rb") as file:
            head = file.read(written.FIRST)
            if len(head) < written.FIRST:
                return np.empty(0, ENTRY), 0
            [count] = written.HEAD.unpack_from(head, 0)
            [left_out] = written.LEFT_OUT.unpack_from(head, written.HEAD.size)
            return np.frombuffer(file.read(count * ENTRY.itemsize), ENTRY), left_out
    except FileNotFoundError:
        return np.empty(0, ENTRY), 0


def account_of(name: str, entries: NDArray[np.void], left_out: int = 0) -> ServerAccount:
    """Return what the entries of a server say."""
    account = ServerAccount(name, left_out=left_out)
    begun: dict[Update, int] = {}
    opening = False
    for kind, rank, _, step, ns, number in entries.tolist():
        update, at = (rank, step), ns / 1e9
        if kind in (FRESH, KEPT, OPENED):
            if kind == FRESH:
                account.begin_anew(step)
            elif kind == KEPT:
                # Begun, and no longer to be seen how it ended: the memory has counted it, or not.
                for each in [each for each, before in begun.items() if number > before]:
                    _apply(account, each, at)
            opening = not account.processes
            account.processes += kind != OPENED or opening
            begun = {}
        elif kind == KNOWN and opening:
            if number:
                account.known.add(update)
            else:
                account.before[rank] = step
        elif kind == BEGUN:
            begun[update] = number
        elif kind == APPLIED:
            begun.pop(update, None)
            _apply(account, update, at)
    return account


def _apply(account: ServerAccount, update: Update, at: float) -> None:
    account.applied[update] += 1
    account.first_s.setdefault(update, at)
    account.last_s[update] = at


def last_step(run_dir: Path, servers: Iterable[str]) -> int:
    """Return the last step of which a server's newest entry says that it is applied; -1 if there is none.

    Reads the ends of files only, so that it can be asked all the time.
    """
    found = -1
    for name in servers:
        path = run_dir / written.FOLDER / f"{name}{written.SUFFIX}"
        try:
            with path.open("rb") as file:
                head = file.read(written.FIRST)
                if len(head) < written.FIRST:
                    continue
                [count] = written.HEAD.unpack_from(head, 0)
                first = max(0, count - 8)
                file.seek(written.FIRST + first * ENTRY.itemsize)
                entries = np.frombuffer(file.read((count - first) * ENTRY.itemsize), ENTRY)
        except FileNotFoundError:
            continue
        steps = entries["step"][np.isin(entries["kind"], (APPLIED, KNOWN))]
        found = max(found, int(steps.max(initial=-1)))
    return found


def open_accounts(run_dir: Path) -> None:
    """Have the servers of a run keep accounts; raises FileExistsError if they do already."""
    (run_dir / written.FOLDER).mkdir(mode=0o700)


def close_accounts(run_dir: Path) -> None:
    """Have the servers keep accounts no more."""
    folder = run_dir / written.FOLDER
    for path in folder.glob(f"*{written.SUFFIX}"):
        path.unlink(missing_ok=True)
    folder.rmdir()

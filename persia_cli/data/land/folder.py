"""The folder of a landed topic: names of files hold offsets, and the greatest is the position.

A file NUMBER-TOPIC-pPARTITION-FIRST-LAST.parquet has the messages with the offsets FIRST to LAST of a partition. It
appears whole, by a rename; so a process that is killed at any moment continues where its last file ended. Numbers only
grow, so the order of names is that of arrival over all partitions.
"""

# Invariants:
#
# - The next offset of a partition is the one after its last file, or the recorded one if that is greater: offsets
#   without a row, and files that were removed, are landed too. So is the number of the next file: a reader that goes on
#   after the last name that it has read misses none.
# - The record is written after the files: it never has an offset whose message is in no file.

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow.parquet as pq

from persia_cli.disk import claim, rename, write_whole, writing
from persia_cli.errors import UserError, one_line

RECORD = "_landed.json"
_DRAFT = ".landing"
_NAME = re.compile(r"(?P<number>\d{12})-(?P<topic>[\w.-]+)-p(?P<partition>\d+)-(?P<first>\d+)-(?P<last>\d+)\.parquet")


class _Positions(msgspec.Struct, forbid_unknown_fields=True):
    """The content of RECORD."""

    topic: str
    cluster: str
    next: dict[int, int]
    """The next offset of each partition."""
    number: int
    """The number of the next file."""


_DECODER = msgspec.json.Decoder(_Positions)


class Landed(NamedTuple):
    """A file with messages."""

    number: int
    topic: str
    partition: int
    first: int
    last: int


class LandingFolder:
    """The folder, which this process alone writes to; see `landing_folder`."""

    def __init__(self, folder: Path, topic: str, cluster: str) -> None:
        self._folder, self._topic, self._cluster = folder, topic, cluster
        record = self._recorded()
        self.is_new = record is None
        """True if nothing was ever landed here."""
        self._next: dict[int, int] = {} if record is None else record.next
        names = sorted(path.name for path in folder.iterdir())
        landed = [self._landed(name) for name in names if name.endswith(".parquet") and not name.startswith((".", "_"))]
        self._number = max([0 if record is None else record.number, *(file.number + 1 for file in landed)])
        for file in landed:
            self._next[file.partition] = max(file.last + 1, self._next.get(file.partition, 0))
        self.is_new = self.is_new and not landed
        self.schema: Any = pq.read_schema(folder / names[names.index(_name(landed[0]))]) if landed else None
        """Arrow schema of all files; None before the first."""

    def _recorded(self) -> _Positions | None:
        """Return the record of an earlier process; raises UserError if it is of other messages."""
        path = self._folder / RECORD
        try:
            record = _DECODER.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise UserError(f"{path} cannot be read ({one_line(error)}); restore it") from error
        for what, there, here in (("topic", record.topic, self._topic), ("cluster", record.cluster, self._cluster)):
            if there != here:
                raise UserError(
                    f"--to {self._folder} has messages of {what} {there}, and these are of {what} {here}; give them "
                    "another folder"
                )
        return record

    def _landed(self, name: str) -> Landed:
        found = _NAME.fullmatch(name)
        if found is None or found["topic"] != self._topic:
            raise UserError(f"--to {self._folder} has {name}, which is of something else; give an empty folder")
        number, partition, first, last = (int(found[key]) for key in ("number", "partition", "first", "last"))
        return Landed(number, self._topic, partition, first, last)

    def next_of(self, partition: int) -> int | None:
        """Return the next offset of a partition; None where nothing is known of it."""
        return self._next.get(partition)

    def begin(self, partition: int, offset: int) -> None:
        """Set the first offset of a partition that nothing is known of."""
        self._next[partition] = offset

    def write(self, partition: int, last: int, table: Any) -> str | None:
        """Write the messages from the next offset of a partition to `last`; return the file's name, None without rows.

        Raises DiskError.
        """
        name = None
        if table is not None and table.num_rows:
            file = Landed(self._number, self._topic, partition, self._next[partition], last)
            name, draft = _name(file), self._folder / f"{_DRAFT}-{partition}"
            with writing(draft):
                pq.write_table(table, draft, compression="zstd")
                rename(draft, self._folder / name, overwrite=False)
            self._number += 1
            self.schema = table.schema if self.schema is None else self.schema
        self._next[partition] = last + 1
        return name

    def record(self) -> None:
        """Record the position of each partition; raises DiskError."""
        record = _Positions(self._topic, self._cluster, dict(sorted(self._next.items())), self._number)
        write_whole(self._folder / RECORD, msgspec.json.encode(record))


def _name(file: Landed) -> str:
    return f"{file.number:012}-{file.topic}-p{file.partition}-{file.first}-{file.last}.parquet"


@contextmanager
def landing_folder(folder: Path, topic: str, cluster: str) -> Iterator[LandingFolder]:
    """Yield the folder for the messages of a topic of a cluster, created if need be; no other process writes there.

    Raises UserError for a folder of other messages, or of a process that is at work.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not claim(lock):
            raise UserError(f"--to {folder}: another process lands messages there; stop it, or give another folder")
        with writing(folder):
            for draft in (*folder.glob(f"{_DRAFT}-*"), *folder.glob(f"{RECORD}.*")):
                draft.unlink()
        yield LandingFolder(folder, topic, cluster)
    finally:
        os.close(lock)

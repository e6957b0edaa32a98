"""The folder of a landed topic: files of whole messages, and the record of the positions up to which they are landed.

A file NUMBER-TOPIC-pPARTITION-FIRST-LAST.parquet has the messages with the offsets FIRST to LAST of a partition.
Numbers only grow, so the order of names is that of arrival over all partitions.
"""

# Invariants:
#
# - The record decides what is landed. A file is written under a hidden name, then the record has its messages, then it
#   gets its name. The next process gives names to the files that the record has, and removes the others.
# - So a file may be removed once it has its name. A reader that goes on after its last name misses none.

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.disk import claim, rename, replacing, write_whole, writing
from persia_cli.errors import UserError, one_line

RECORD = "_landed.json"
_DRAFT = ".landing-"


class Position(NamedTuple):
    """The place in a partition up to which messages are landed."""

    next: int
    """The next offset."""
    before: int | None = None
    """Checksum of the message before it, if that was landed."""


class LandingRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The content of RECORD."""

    topic: str
    cluster: str
    positions: dict[int, Position]
    number: int = 0
    """The number of the next file."""
    columns: bytes | None = None
    """Arrow schema of all files, as IPC has it; None before the first."""


_DECODER = msgspec.json.Decoder(LandingRecord)


class LandingFolder:
    """The folder, which this process alone writes to; see `landing_folder`."""

    def __init__(self, folder: Path, topic: str, cluster: str) -> None:
        self._folder, self._record = folder, _recorded(folder, topic, cluster)
        self.positions = self._record.positions
        """The position of each partition; empty if nothing was ever landed here."""
        with writing(folder):
            for draft in sorted(folder.glob(f"{_DRAFT}*")):
                name = draft.name.removeprefix(_DRAFT)
                if name.endswith(".parquet") and int(name.partition("-")[0]) < self._record.number:
                    rename(draft, folder / name)
                else:
                    draft.unlink()
            for part in folder.glob(f"{RECORD}.*"):
                part.unlink()

    @property
    def columns(self) -> Any:
        """Arrow schema of all files; None before the first."""
        columns = self._record.columns
        return None if columns is None else pa.ipc.read_schema(pa.py_buffer(columns))

    def write(self, partition: int, last: int, checksum: int, table: Any) -> str | None:
        """Write the messages of a partition up to offset `last`, which has this checksum; return the file's name.

        `table` has their rows; without any there is no file. Raises DiskError.
        """
        record, name = self._record, ""
        if table is not None and table.num_rows:
            name = f"{record.number:012}-{record.topic}-p{partition}-{self.positions[partition].next}-{last}.parquet"
            with replacing(self._folder / f"{_DRAFT}{name}") as draft:
                pq.write_table(table, draft, compression="zstd")
            record.number += 1
            record.columns = record.columns or table.schema.serialize().to_pybytes()
        self.positions[partition] = Position(last + 1, checksum)
        self.record()
        if name:
            rename(self._folder / f"{_DRAFT}{name}", self._folder / name)
        return name or None

    def record(self) -> None:
        """Record the positions; raises DiskError."""
        write_whole(self._folder / RECORD, msgspec.json.encode(self._record))


def _recorded(folder: Path, topic: str, cluster: str) -> LandingRecord:
    """Return the record of an earlier process, or a new one; raises UserError for a folder of other messages."""
    path = folder / RECORD
    try:
        record = _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        if any(folder.glob("*.parquet")):
            raise UserError(f"--to {folder} has files, and no {RECORD}; give an empty folder, or restore it") from None
        return LandingRecord(topic, cluster, {})
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}); restore it") from error
    for what, there, here in (("topic", record.topic, topic), ("cluster", record.cluster, cluster)):
        if there != here:
            raise UserError(
                f"--to {folder} has messages of {what} {there}, and these are of {what} {here}; give them another "
                "folder"
            )
    return record


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
        yield LandingFolder(folder, topic, cluster)
    finally:
        os.close(lock)

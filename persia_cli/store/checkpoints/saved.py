"""The files of a checkpoint, as its manifest lists them, and as replicas report them once they have written them."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
FolderName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")]
Checksum = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a checkpoint's manifest; the type of every value is checked."""


class SavedRows(Record, frozen=True, forbid_unknown_fields=True):
    """The rows of a file: those of a feature group with keys in the partitions [first, stop) of `partitions`."""

    group: Count
    partitions: Positive
    first: Count
    stop: Count
    tables: dict[str, Positive]
    """Number of rows of each table that has any in the file."""

    @property
    def total(self) -> int:
        """Rows of all tables."""
        return sum(self.tables.values())

    @property
    def partition_range(self) -> tuple[int, int, int, int]:
        """The group and the partitions of the file's rows."""
        return self.group, self.partitions, self.first, self.stop


class SavedFile(Record, frozen=True, forbid_unknown_fields=True):
    """A file of a checkpoint: its folder, size and XXH128 checksum, and, if it contains rows, which ones."""

    folder: FolderName
    name: FileName
    nbytes: Count
    xxh128: Checksum
    rows: SavedRows | None = None


# Created at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
_DECODER = msgspec.json.Decoder(tuple[SavedFile, ...])


def encode_files(files: Sequence[SavedFile]) -> bytes:
    """Return the entries of files as JSON, for a message."""
    return msgspec.json.encode(files)


def decode_files(content: bytes) -> tuple[SavedFile, ...]:
    """Return the entries of files; raise ValueError if the content is not what `encode_files` returns."""
    return _DECODER.decode(content)

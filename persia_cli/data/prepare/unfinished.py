"""A data set in preparation: a hidden folder next to its final place, from which a later run continues.

Each finished Parquet file has a state file that records its sources: recipe, options, and size, times and inode of the
source files. A file with no state file, or with a different one, is made again. State files are renamed into place
after the Parquet file is on disk, so that after a kill at any moment no unfinished file looks finished.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from persia_cli.data.prepare.options import PrepareOptions, PrepareReport
from persia_cli.data.prepare.parts import DatasetPart
from persia_cli.data.read.bad_rows import BadRow, BadRows
from persia_cli.data.read.dataset_yaml import NAME
from persia_cli.disk import is_held, rename, sync, write_whole, writing
from persia_cli.errors import DataError, DiskError
from persia_cli.version import __version__

KEPT = "finished files are kept; the same command continues from there"
_STATE = ".state"
RECORD = "preparation.json"
"""File that records the sources of a data set."""


class PartState(msgspec.Struct, frozen=True):
    """A finished part."""

    made_of: str
    """`fingerprint` of its sources."""
    rows: int
    nbytes: int
    """Size of the Parquet file; 0 for a part without rows, which has no file."""
    bad_rows: int
    found: tuple[BadRow, ...]
    """The first of the bad rows."""

    def count_in(self, bad: BadRows) -> None:
        """Add the part's bad rows to those of the data set."""
        bad.add(self.found, self.bad_rows)


class _Record(msgspec.Struct):
    """The facts about a finished data set."""

    made_of: dict[str, str]
    """Fingerprint of each part."""
    rows: int
    nbytes: int
    files: list[str]
    bad_rows: int
    first_bad_rows: tuple[BadRow, ...]


_STATES, _RECORDS = msgspec.json.Decoder(PartState), msgspec.json.Decoder(_Record)


def fingerprint(part: DatasetPart, options: PrepareOptions, others: Sequence[DatasetPart] = ()) -> str:
    """Return 64 hexadecimal digits of all that a part's rows depend on, including the parts `others`."""
    made_of = {
        "version": __version__,
        "recipe": options.recipe,
        "row_group_rows": options.row_group_rows,
        "min_count": options.min_count,
        "split": options.split,
        "parts": [(each.name, each.nbytes, [_stamp(file) for file in each.inputs]) for each in (part, *others)],
    }
    return sha256(json.dumps(made_of).encode()).hexdigest()


def _stamp(file: Path) -> tuple[str, int, int, int, int]:
    stat = file.stat()
    # A replaced file may have the same size and time: cp -p, rsync -t.
    return str(file.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns


class UnfinishedFolder:
    """The hidden folder: Parquet files, and the state of those that are finished."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file(self, part: DatasetPart) -> Path:
        """Return the path of a part's file."""
        return self._folder / f"{part.name}.parquet"

    def finished(self, part: DatasetPart, made_of: str) -> PartState | None:
        """Return the state of a finished part with the same fingerprint; otherwise remove its files and return None."""
        state = _read_state(self._state(part))
        if state is not None and state.made_of == made_of and _size(self.file(part)) == state.nbytes:
            return state
        self._state(part).unlink(missing_ok=True)
        self.file(part).unlink(missing_ok=True)
        return None

    def finish(self, part: DatasetPart, state: PartState) -> None:
        """Record that a part is finished, after its file is on disk."""
        if state.rows:
            sync(self.file(part))
        write_whole(self._state(part), msgspec.json.encode(state))

    def keep_only(self, parts: Sequence[DatasetPart]) -> None:
        """Remove the files that belong to none of these parts, such as those of other options or sources."""
        known = {path.name for part in parts for path in (self.file(part), self._state(part))}
        for path in self._folder.iterdir():
            if path.name not in known:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def write(self, name: str, text: str | bytes) -> None:
        """Write a file next to the Parquet files, atomically."""
        write_whole(self._folder / name, text)

    def publish(self, output: Path) -> None:
        """Give the folder its final name; it is then a finished data set."""
        rename(self._folder, output)
        for path in output.glob(f"*{_STATE}"):
            path.unlink()

    @property
    def holds_finished_parts(self) -> bool:
        """Return True if a later run can continue from finished parts."""
        return any(self._folder.glob(f"*{_STATE}"))

    def remove_if_nothing_is_finished(self) -> None:
        """Remove the folder if no part is finished."""
        if self._folder.is_dir() and not self.holds_finished_parts:
            shutil.rmtree(self._folder)

    def _state(self, part: DatasetPart) -> Path:
        return self._folder / f"{part.name}{_STATE}"


@contextmanager
def unfinished(output: Path) -> Iterator[UnfinishedFolder]:
    """Yield the hidden folder to write in, which gets its final name at the end; on failure, finished parts are kept.

    Raises DataError if the output exists and is not an empty folder, or if another process prepares it; DiskError if it
    cannot be written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output} exists already; name a folder that does not exist, or remove it")
    if output.is_symlink() or output.is_mount():
        raise DataError(f"{output} is a link or a mount point, which cannot be replaced; name a folder inside it")
    output = output.absolute()
    place = output.with_name(f".{output.name}.partial")
    with writing(output):
        place.mkdir(parents=True, exist_ok=True)
        with locked(place, output):
            folder = UnfinishedFolder(place)
            try:
                with writing(output):
                    yield folder
                    folder.publish(output)
            except (DataError, DiskError) as error:
                if folder.holds_finished_parts:
                    raise type(error)(f"{error}\n  {KEPT}") from error
                raise
            finally:
                folder.remove_if_nothing_is_finished()


@contextmanager
def locked(folder: Path, output: Path) -> Iterator[None]:
    """Lock the folder for this process; the lock ends with the process, even if that is killed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if is_held(descriptor):
            raise DataError(f"{output} is being prepared by another process; wait for it to finish, or stop it")
        yield
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_state(path: Path) -> PartState | None:
    try:
        return _STATES.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def to_record(report: PrepareReport, made_of: dict[str, str]) -> bytes:
    """Return the content of RECORD; `made_of` holds the fingerprint of each part by name."""
    names = [file.name for file in report.files]
    record = _Record(made_of, report.rows, report.nbytes, names, report.bad_rows, report.first_bad_rows)
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def find_finished(output: Path, made_of: dict[str, str], allowed_bad_rows: int) -> PrepareReport | None:
    """Return the report of the finished data set in `output` if it was made from the same sources, else None."""
    try:
        record = _RECORDS.decode((output / RECORD).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    files = tuple(output / name for name in record.files)
    is_whole = (output / NAME).is_file() and sum(map(_size, files)) == record.nbytes
    if record.made_of != made_of or not is_whole:
        return None
    if record.bad_rows > allowed_bad_rows:
        raise DataError(
            f"{output} was made without {record.bad_rows} rows that do not parse, and {allowed_bad_rows} may fail; "
            "give a higher --max-bad-rows, or correct the source and remove the folder"
        )
    return PrepareReport(
        record.rows, files, record.nbytes, record.bad_rows, record.first_bad_rows, output / NAME, kept=len(files)
    )

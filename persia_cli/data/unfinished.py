"""A data set while it is made: a hidden folder beside the place where it will be, from which a later run goes on.

Each finished Parquet file has a state file that says what it was made of: recipe, options, and size and time of the
source files. A file without one, or with another, is made again. State files are renamed into place after the Parquet
file is on disk, so that a kill at any moment leaves nothing that looks finished and is not.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from persia_cli import __version__
from persia_cli.data.bad_rows import BadRows, Found
from persia_cli.data.parts import Part
from persia_cli.data.prepare_options import PrepareOptions
from persia_cli.errors import DataError

KEPT = "the files that were finished are kept; the same command goes on from there"
_STATE = ".state"


@dataclass(frozen=True)
class PartState:
    """A finished part."""

    made_of: str
    """`fingerprint` of what it was made of."""
    rows: int
    nbytes: int
    """Of the Parquet file; without rows there is none."""
    bad_rows: int
    found: tuple[Found, ...]
    """The first of the bad rows."""

    def count_in(self, bad: BadRows) -> None:
        """Count the part's bad rows among those of the data set."""
        bad.add(self.found, self.bad_rows)


def fingerprint(part: Part, options: PrepareOptions, others: Sequence[Part] = ()) -> str:
    """Return 64 hexadecimal digits for all that a part's rows depend on; `others` are parts that they depend on too."""
    made_of = {
        "version": __version__,
        "recipe": options.recipe,
        "row_group_rows": options.row_group_rows,
        "min_count": options.min_count,
        "split": options.split,
        "parts": [(each.name, each.nbytes, [_stamp(file) for file in each.inputs]) for each in (part, *others)],
    }
    return sha256(json.dumps(made_of).encode()).hexdigest()


def _stamp(file: Path) -> tuple[str, int, int]:
    stat = file.stat()
    return str(file.absolute()), stat.st_size, stat.st_mtime_ns


class UnfinishedFolder:
    """The hidden folder: Parquet files that are made, and which of them are finished."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file(self, part: Part) -> Path:
        """Return where a part is written."""
        return self._folder / f"{part.name}.parquet"

    def finished(self, part: Part, made_of: str) -> PartState | None:
        """Return the state of a part that is finished and was made of the same; otherwise what is there is removed."""
        state = _read_state(self._state(part))
        if state is not None and state.made_of == made_of and _size(self.file(part)) == state.nbytes:
            return state
        self._state(part).unlink(missing_ok=True)
        self.file(part).unlink(missing_ok=True)
        return None

    def finish(self, part: Part, state: PartState) -> None:
        """Record that a part is finished; its file is on disk before that can be read."""
        if state.rows:
            _sync(self.file(part))
        write_whole(self._state(part), json.dumps(asdict(state)))

    def keep_only(self, parts: Sequence[Part]) -> None:
        """Remove what belongs to no part: the leavings of other options or sources."""
        known = {path.name for part in parts for path in (self.file(part), self._state(part))}
        for path in self._folder.iterdir():
            if path.name not in known:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def write(self, name: str, text: str) -> None:
        """Write a file beside the Parquet files, whole or not at all."""
        write_whole(self._folder / name, text)

    def publish(self, output: Path) -> None:
        """Give the folder its real name; from then on it is a finished data set."""
        self._folder.replace(output)
        for path in output.glob(f"*{_STATE}"):
            path.unlink()

    @property
    def holds_finished_parts(self) -> bool:
        """Whether there is something to go on from."""
        return any(self._folder.glob(f"*{_STATE}"))

    def remove_if_nothing_is_finished(self) -> None:
        """Leave nothing behind where there is nothing to go on from."""
        if self._folder.is_dir() and not self.holds_finished_parts:
            shutil.rmtree(self._folder)

    def _state(self, part: Part) -> Path:
        return self._folder / f"{part.name}{_STATE}"


@contextmanager
def unfinished(output: Path) -> Iterator[UnfinishedFolder]:
    """Give the hidden folder to write in, which takes its real name at the end; a failure keeps what is finished.

    Raises DataError if the output is there already and not an empty folder, or if another process is at it.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output} exists already; name a folder that does not, or remove it")
    if output.is_symlink() or output.is_mount():
        raise DataError(f"{output} is a link or a mount point, which cannot be replaced; name a folder inside it")
    output = output.absolute()
    place = output.with_name(f".{output.name}.partial")
    try:
        place.mkdir(parents=True, exist_ok=True)
        with locked(place, output):
            folder = UnfinishedFolder(place)
            try:
                yield folder
                folder.publish(output)
            except DataError as error:
                if folder.holds_finished_parts:
                    raise DataError(f"{error}\n  {KEPT}") from error
                raise
            finally:
                folder.remove_if_nothing_is_finished()
    except OSError as error:
        raise DataError(f"cannot write {output}: {error}") from error


@contextmanager
def locked(folder: Path, output: Path) -> Iterator[None]:
    """Hold the folder for this process; the lock goes with the process, however that ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataError(f"{output} is being prepared by another process; wait for it, or end it") from None
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_state(path: Path) -> PartState | None:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return PartState(**(values | {"found": tuple(Found(**each) for each in values["found"])}))
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""The folder that an export writes: what it may replace, and how it appears."""

import errno
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, Self

from persia_cli.disk import rename, sync, writing
from persia_cli.errors import UserError
from persia_cli.observe.saved_run import SavedModel
from persia_cli.serving.description import FEATURES, GOLDEN, MODEL, NETWORK

PLAIN = ("predict.py", "network.py", "network.safetensors", MODEL)
"""Files of an export to plain torch."""
SERVED = (MODEL, NETWORK, FEATURES, GOLDEN)
"""Files of a serving export; a damaged one, or one of another format, can be replaced too."""


@dataclass(frozen=True, slots=True)
class Output:
    """The path of an export, and whether it replaces an existing folder."""

    folder: Path
    """Absolute; the folder need not exist, its parent does."""
    overwrite: bool = False

    @classmethod
    def at(cls, folder: Path, overwrite: bool) -> Self:
        """Return the output at a path; raises UserError if the path is not writable."""
        if not folder.absolute().parent.is_dir():
            raise UserError(f"-o {folder}: there is no folder {folder.absolute().parent}; create it first")
        if folder.is_symlink():
            raise UserError(f"-o {folder} is a symbolic link; name the folder itself")
        found = cls(folder.resolve(), overwrite)
        if found.folder.exists():
            found.require_replaceable()
        return found

    def require_apart(self, model: SavedModel) -> None:
        """Raise UserError if the output is, contains, or lies in the run or the checkpoint that is exported."""
        for other in (model.run_dir, model.checkpoint):
            if isinstance(other, Path):
                place = other.resolve()
                if self.folder.is_relative_to(place) or place.is_relative_to(self.folder):
                    raise UserError(f"-o {self.folder} would be mixed with {other}, which is exported; choose another")

    def require_replaceable(self) -> None:
        """Raise UserError unless the path is free or may be replaced: with `overwrite` an empty folder or an export."""
        folder = self.folder
        if not self.overwrite:
            raise UserError(f"{folder} exists already; choose another name, or give --overwrite")
        if folder.is_symlink() or not folder.is_dir():
            raise UserError(f"{folder} is no folder; choose another name")
        if folder == folder.parent or (any(folder.iterdir()) and not _is_export(folder)):
            raise UserError(
                f"{folder} is neither empty nor an earlier export, so --overwrite does not replace it; "
                "choose another name, or remove it yourself"
            )

    @contextmanager
    def replaced(self) -> Iterator[Path]:
        """Yield a new folder to write into; at the end its files are on disk, and it gets the name of the output.

        After a failure it is removed, and an existing folder is unchanged. Raises DiskError, and UserError if by then
        the path has content that may not be replaced.
        """
        folder = self.folder
        part = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.part")
        try:
            with ended_by_exit() as require_wanted, writing(folder):
                part.mkdir()
                yield part
                require_wanted()
                for each in sorted(part.rglob("*")):
                    sync(each)
                if self.overwrite and folder.exists():
                    self.require_replaceable()
                    self._exchange(part)
                else:
                    self._appear(part)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _exchange(self, part: Path) -> None:
        """Replace the existing folder, and remove it."""
        replaced = self.folder.with_name(f"{self.folder.name}.{secrets.token_hex(4)}.old")
        rename(self.folder, replaced)
        try:
            rename(part, self.folder)
        except BaseException:
            if not self.folder.exists():
                rename(replaced, self.folder)
            raise
        shutil.rmtree(replaced)

    def _appear(self, part: Path) -> None:
        """Rename the new folder, which the operating system refuses if there is a file or a folder of files."""
        try:
            rename(part, self.folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise UserError(
                f"{self.folder} has appeared during the export, and is unchanged; export again under another name"
            ) from error


@contextmanager
def ended_by_exit() -> Iterator[Callable[[], None]]:
    """Make SIGTERM raise SystemExit in the block, so that an incomplete output is removed.

    Yields a function that raises it again: it is lost if it arrives in a callback or a finaliser of a library.
    """
    has_come = False

    def end(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal has_come
        has_come = True
        sys.exit(128 + number)

    def require_wanted() -> None:
        if has_come:
            sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield require_wanted
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_export(folder: Path) -> bool:
    return any(all((folder / name).is_file() for name in names) for names in (PLAIN, SERVED))

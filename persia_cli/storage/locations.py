"""The location of a run's checkpoints, on a local disk or at a URI, and the differences between the two.

`Location` is a folder or file of either kind; both have `/`, `name`, `parent`, `suffix`, `is_file` and `read_bytes`.
Everything else uses the functions here:

- `location_of` opens a path or URI, `address_of` returns the text that opens it again on another machine.
- `writing_file` and `put` write a file that is whole and safe when they return; folders need not be created.
- `size_of` and `reading` (a stream of bytes) read; `subfolders` lists.
- `draft_of` returns a new folder for the content of a subfolder, `publish` makes it appear at once, complete.
  On a local disk the draft has another name, and publishing is fsync, seal last, rename. An object store renames
  nothing: the draft is a folder of its own name inside of the subfolder, and publishing writes the seal. So a folder
  is read only if it has its seal, and a writer that should have ended can never change a file that a seal lists.
- `drafts` lists unpublished folders, `remove` removes. A local folder is renamed before, and the seal of a remote one
  is removed first, so half a folder never looks like a whole one.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from persia_cli import disk
from persia_cli.errors import CheckpointError, DiskError, one_line
from persia_cli.storage.addresses import local_path, open_uri, opened, plain_uri, without_credentials
from persia_cli.storage.local_files import LocalSink, LocalSource, open_directly
from persia_cli.storage.remote import DEADLINE_S, RemotePath, ask, explain, sending_s, within, without_secret

Location = Path | RemotePath

PARTIAL, REMOVED = ".partial", ".removed"
"""Suffixes of a local folder while it is written, and while it is removed."""
FLUSH_BYTES = 2**26
"""Bytes after which a remote file waits until all of it has been sent, which limits the memory."""


def location_of(address: str | Path) -> Location:
    """Return the location that a local path or a URI names; raises CheckpointError if pyarrow cannot open the URI."""
    if isinstance(address, Path) or "://" not in address:
        return local_path(address)
    from pyarrow import fs

    # The address may contain credentials; from here on they are in no text that is shown or written.
    shown = without_credentials(plain_uri(address))
    address = opened(shown)
    try:
        filesystem, path = open_uri(address, CheckpointError)
    except (ValueError, NotImplementedError) as error:
        reason = without_secret(one_line(error).replace(address, shown))
        raise CheckpointError(f"{without_secret(shown)} is not a location that pyarrow can open: {reason}") from error
    return Path(path) if isinstance(filesystem, fs.LocalFileSystem) else RemotePath(filesystem, path, shown)


def address_of(location: Location) -> str:
    """Return the text by which `location_of` opens the location in another process, without credentials."""
    return location.uri if isinstance(location, RemotePath) else str(location.absolute())


def size_of(location: Location) -> int | None:
    """Return the number of bytes of a file, None if there is no such file."""
    if isinstance(location, RemotePath):
        return location.size()
    return location.stat().st_size if location.is_file() else None


def nbytes_below(location: Location) -> int:
    """Return the size of all files in a folder and below; files that vanish meanwhile count nothing."""
    if isinstance(location, RemotePath):
        return sum(location.sizes_below())
    total = 0
    for path in location.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size if path.is_symlink() or path.is_file() else 0
    return total


def modified_s(location: Location) -> float:
    """Return the time of the last write to a file, in seconds since 1970; raises FileNotFoundError if there is none."""
    return location.modified_s() if isinstance(location, RemotePath) else location.stat().st_mtime


@contextmanager
def reading_stream(location: Location) -> Iterator[Any]:
    """Yield a file as a stream with `read`, which may reuse the memory of a part that is unreferenced."""
    if isinstance(location, Path):
        with open(location, "rb", buffering=0, opener=open_directly) as source:
            yield LocalSource(source)
    else:
        with location.open_stream() as source:
            yield source


@contextmanager
def reading(location: Location) -> Iterator[Any]:
    """Yield a file as a stream with `read`; raises CheckpointError if it cannot be opened or read."""
    try:
        with reading_stream(location) as source:
            yield source
    except OSError as error:
        reason = explain(error) if isinstance(location, RemotePath) else f"it cannot be read: {error.strerror or error}"
        raise CheckpointError(f"{location}: {reason}; use another checkpoint") from error


@contextmanager
def writing_file(location: Location) -> Iterator[Any]:
    """Yield a file to write; when the block ends, it is on disk or in the store. Raises DiskError and removes it."""
    sink: Any
    try:
        if isinstance(location, RemotePath):
            with _errors(location), _remote_file(location) as sink:
                yield sink
        else:
            with disk.writing(location):
                location.parent.mkdir(parents=True, exist_ok=True)
                with open(location, "wb", buffering=0, opener=open_directly) as sink:
                    yield LocalSink(sink)
                    os.fsync(sink.fileno())
    except BaseException:
        # If the disk is full, the space is needed to write the error message.
        with suppress(OSError, DiskError, CheckpointError), within(DEADLINE_S):
            remove_file(location)
        raise


class _RemoteFile:
    """A file that is being sent; unsent data is at most FLUSH_BYTES."""

    def __init__(self, location: RemotePath) -> None:
        self._location, self._waiting = location, 0
        self._sink: Any = self._ask(lambda: location.filesystem.open_output_stream(location.path))

    def write(self, data: Any) -> int:
        nbytes: int = memoryview(data).nbytes
        # A copy, since the store may still send this when the caller overwrites its memory.
        self._sink.write(bytes(data))
        self._waiting += nbytes
        if self._waiting >= FLUSH_BYTES:
            self._ask(self._sink.flush)
            self._waiting = 0
        return nbytes

    def close(self) -> None:
        """Wait until everything is sent."""
        self._ask(self._sink.close)

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call to the store; raises DiskError if the store refuses or misses the deadline."""
        return ask(self._location.uri, call, sending_s(self._waiting), DiskError, "write")


@contextmanager
def _remote_file(location: RemotePath) -> Iterator[Any]:
    if location.filesystem.type_name == "hdfs":
        location.filesystem.create_dir(location.parent.path, recursive=True)
    file = _RemoteFile(location)
    try:
        yield file
    except BaseException:
        with suppress(DiskError), within(DEADLINE_S):
            file.close()
        raise
    file.close()


@contextmanager
def _errors(location: RemotePath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(f"{location}: {explain(error, 'write')}") from error


def put(location: Location, content: bytes) -> None:
    """Write a whole file, which appears at once; an existing one is replaced. Raises DiskError."""
    if isinstance(location, RemotePath):
        location.write_bytes(content)
    else:
        with disk.writing(location):
            location.parent.mkdir(parents=True, exist_ok=True)
        disk.write_whole(location, content)


def remove_file(location: Location) -> None:
    """Remove a file if there is one; raises OSError, DiskError."""
    location.unlink(missing_ok=True) if isinstance(location, Path) else location.remove()


def subfolders(location: Location) -> list[Location]:
    """Return the folders in a folder, ordered by name; none if there is no such folder."""
    if isinstance(location, RemotePath):
        return list(location.folders())
    return [path for path in sorted(location.iterdir()) if path.is_dir()] if location.is_dir() else []


def draft_of(location: Location) -> Location:
    """Return a new folder for writing the content of the folder `location` until it is published."""
    if isinstance(location, RemotePath):
        return location / secrets.token_hex(4)
    draft = location.with_name(f"{location.name}{PARTIAL}")
    if draft.exists():
        shutil.rmtree(draft, ignore_errors=True)
    return draft


def prefix_in(location: Location, draft: Location) -> str:
    """Return the beginning of a draft's file names in the published folder: empty, or `NAME/`."""
    return f"{draft.name}/" if isinstance(location, RemotePath) else ""


def publish(location: Location, draft: Location, seal: str, content: bytes) -> None:
    """Make a draft the folder `location`; the file `seal` is written last, once all files of the draft are safe.

    Raises DiskError.
    """
    if isinstance(location, RemotePath):
        put(location / seal, content)
        # It is published now, even if the remains of an earlier writer cannot be removed.
        with suppress(OSError, DiskError, CheckpointError):
            for other in subfolders(location):
                if other.name != draft.name:
                    remove(other, seal)
        return
    assert isinstance(draft, Path)
    with disk.writing(location):
        for folder in sorted(path for path in draft.rglob("*") if path.is_dir()):
            disk.sync(folder)
        disk.write_whole(draft / seal, content)
        disk.rename(draft, location)
        disk.sync(location.parent.parent)


def drafts(locations: Location, seal: str) -> list[Location]:
    """Return the folders in `locations` that were not published, or not completely removed."""
    if isinstance(locations, RemotePath):
        # Each seal is requested by name, since a list may be older than the seal.
        return [folder for folder in subfolders(locations) if not (folder / seal).is_file()]
    return [folder for folder in subfolders(locations) if folder.suffix in (PARTIAL, REMOVED)]


def remove(location: Location, seal: str) -> None:
    """Remove a folder, published or not, so that its remains after a failure are in `drafts`.

    Raises OSError or DiskError.
    """
    if isinstance(location, RemotePath):
        (location / seal).remove()
        location.remove()
        return
    doomed = location
    if location.suffix not in (PARTIAL, REMOVED):
        doomed = location.with_name(f"{location.name}{REMOVED}")
        if doomed.exists():
            shutil.rmtree(doomed)  # the remains of an interrupted removal of an earlier folder of this name
        disk.rename(location, doomed)
    with suppress(FileNotFoundError):
        shutil.rmtree(doomed)

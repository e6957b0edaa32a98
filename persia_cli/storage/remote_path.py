"""A file or folder on another machine: the part of `pathlib.Path` that reading checkpoints needs, over `pyarrow.fs`."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from persia_cli.errors import CheckpointError, DiskError, UserError
from persia_cli.storage.remote import LISTING_DEADLINE_S, ask, sending_s, within, without_secret

Result = TypeVar("Result")

PAUSES_S = (0.2, 1.0)
"""Seconds to wait before a small file is sent again; each time pyarrow tries three times."""
READ = 2**22
"""Number of bytes of a request."""


class RemotePath:
    """A path at a URI; `str()` of it has no query, `uri` has; neither has credentials.

    Answers of the store are not cached: names and sizes are requested each time. Methods raise CheckpointError if the
    store cannot be read, DiskError if it cannot be written, FileNotFoundError if there is no such file.
    """

    def __init__(self, filesystem: Any, path: str, uri: str) -> None:
        """`path` is that on the file system, without a slash at its end; `uri` is the URI with the store."""
        self.filesystem, self.path = filesystem, path.rstrip("/")
        head, mark, query = uri.partition("?")
        self._head, self._query = head.rstrip("/"), mark + query

    @property
    def uri(self) -> str:
        """The URI by which another process opens it."""
        return self._head + self._query

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        _, point, ending = self.name.rpartition(".")
        return point + ending if point else ""

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(self.filesystem, self.path.rpartition("/")[0], self._head.rpartition("/")[0] + self._query)

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(self.filesystem, f"{self.path}/{name}", f"{self._head}/{name}{self._query}")

    def __str__(self) -> str:
        return without_secret(self.uri)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.uri == other.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    def is_file(self) -> bool:
        """Request this very file, since lists of folders are out of date in some stores."""
        return self.size() is not None

    def size(self) -> int | None:
        """Return the number of bytes of the file, None if there is none."""
        found = self._ask(lambda: self.filesystem.get_file_info(self.path))
        size: int | None = found.size if found.is_file else None
        return size

    def modified_s(self) -> float:
        """Return the time of the last write to the file, in seconds since 1970."""
        found = self._ask(lambda: self.filesystem.get_file_info(self.path))
        if not found.is_file:
            raise FileNotFoundError(str(self))
        return float(found.mtime_ns or 0) / 1e9

    def sizes_below(self) -> list[int]:
        """Return the sizes of all files in the folder and below."""
        return [info.size for info in self._list(recursive=True) if info.is_file]

    def read_bytes(self) -> bytes:
        content: bytes = self._ask(partial(_content, self.filesystem, self.path), LISTING_DEADLINE_S)
        return content

    def open_stream(self) -> Any:
        """Return the file as a stream of bytes, to be closed; raises OSError as pyarrow does."""
        return self.filesystem.open_input_stream(self.path, buffer_size=READ)

    def open_file(self) -> Any:
        """Return the file open for reading at any place, to be closed; raises OSError as pyarrow does."""
        return self.filesystem.open_input_file(self.path)

    def folders(self) -> Iterator["RemotePath"]:
        """Yield the folders in the folder, ordered by name."""
        return (self / info.base_name for info in sorted(self._list(), key=lambda info: info.path) if not info.is_file)

    def iterdir(self) -> Iterator["RemotePath"]:
        """Yield the content of the folder, ordered by name; nothing if there is no such folder."""
        return (self / name for name in sorted(info.base_name for info in self._list()))

    def remove(self) -> None:
        """Remove the file, or the folder with its content; nothing happens if there is neither."""
        self._ask(partial(_remove, self.filesystem, self.path), LISTING_DEADLINE_S, DiskError)

    def write_bytes(self, content: bytes) -> None:
        """Write the whole file at once; an existing one is replaced. Retries if the store refuses."""
        with within(sending_s(len(content))):
            for pause_s in PAUSES_S:
                with suppress(DiskError):
                    return self._put(content)
                time.sleep(pause_s)
            return self._put(content)

    def _put(self, content: bytes) -> None:
        self._ask(partial(_put, self.filesystem, self.path, content), LISTING_DEADLINE_S, DiskError)

    def _list(self, recursive: bool = False) -> Any:
        return self._ask(partial(_listed, self.filesystem, self.path, recursive), LISTING_DEADLINE_S)

    def _ask(
        self,
        call: Callable[[], Result],
        deadline_s: float | None = None,
        raising: type[UserError] = CheckpointError,
    ) -> Result:
        missing: list[FileNotFoundError] = []

        def run() -> Any:
            try:
                return call()
            except FileNotFoundError as error:
                missing.append(error)

        verb = "write" if raising is DiskError else "read"
        result = ask(self.uri, run, deadline_s, raising, verb)
        if missing:
            raise missing[0]
        found: Result = result
        return found


def _content(filesystem: Any, path: str) -> bytes:
    with filesystem.open_input_stream(path) as source:
        content: bytes = source.read()
    return content


def _put(filesystem: Any, path: str, content: bytes) -> None:
    with filesystem.open_output_stream(path) as sink:
        sink.write(content)


def _listed(filesystem: Any, path: str, recursive: bool) -> Any:
    from pyarrow import fs

    return filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=recursive))


def _remove(filesystem: Any, path: str) -> None:
    kind = filesystem.get_file_info(path)
    if kind.is_file:
        filesystem.delete_file(path)
    elif kind.type.name == "Directory":
        filesystem.delete_dir(path)

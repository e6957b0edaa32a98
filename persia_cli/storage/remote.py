"""Files and folders on other machines, over `pyarrow.fs`: calls with a deadline, and sentences for the usual errors."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from persia_cli.errors import CheckpointError, DataError, DiskError, UserError

DEADLINE_S = 30.0
"""Deadline for the first answer of a store."""
SLOWEST = 1e6
"""Minimum bytes per second that a store must take; slower calls are aborted."""
LISTING_DEADLINE_S = 600.0
"""Deadline for the list of all files below a folder."""

Result = TypeVar("Result")

_THREAD = "persia-ask"
_patience = threading.local()

_CAUSES = (
    (("ACCESS_DENIED", "403", "credential", "PERMISSION", "Unauthenticated", "401", "INVALID_ACCESS_KEY"),
     "you may not {verb} it: check credentials (AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS or the like) and rights"),
    (("NO_SUCH_BUCKET", "404", "NotFound", "not found", "does not exist"), "there is no such bucket: check its name"),
    (("NETWORK_CONNECTION", "resolve", "refused", "Could not connect", "connect", "UNAVAILABLE", "timed out"),
     "it cannot be reached: check the network and the endpoint"),
)  # fmt: skip
"""Signs in a store's error, and the sentence for each; a number may also be part of a port or an address."""


def sending_s(nbytes: int) -> float:
    """Return the deadline for the answer to so many bytes that are sent to a store."""
    return DEADLINE_S + nbytes / SLOWEST


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit all calls of `ask` by this thread in the block to so many seconds together."""
    before: tuple[float, float] | None = getattr(_patience, "limits", None)
    limits = (seconds, time.monotonic() + seconds)
    _patience.limits = limits if before is None or limits[1] < before[1] else before
    try:
        yield
    finally:
        _patience.limits = before


def ask(
    uri: str,
    call: Callable[[], Result],
    deadline_s: float | None = None,
    raising: type[UserError] = DataError,
    verb: str = "read",
    passed: tuple[type[OSError], ...] | type[OSError] = (),
) -> Result:
    """Return the result of `call`, by default within DEADLINE_S; `uri` is that of its store.

    Raises `raising` if the call takes longer (it then goes on in its thread), or if it raises an OSError that is not
    `passed`; `verb` names what the call does. Does not call if no time is left `within` a block.
    """
    uri = without_secret(uri)
    limit = limit_s = DEADLINE_S if deadline_s is None else deadline_s
    if limits := getattr(_patience, "limits", None):
        limit, limit_s = min(limit, limits[0]), min(limit, max(0.0, limits[1] - time.monotonic()))
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    if limit_s:
        thread = threading.Thread(target=run, name=_THREAD, daemon=True)
        thread.start()
        thread.join(limit_s)
    if results:
        return results[0]
    if not errors:
        raise raising(
            f"{uri} has not answered within {limit:g} s; check the network, the name of the bucket, and credentials "
            "(GOOGLE_APPLICATION_CREDENTIALS, AWS_PROFILE or the like)"
        )
    if isinstance(errors[0], OSError) and not isinstance(errors[0], passed):
        raise raising(f"{uri}: {explain(errors[0], verb)}") from errors[0]
    raise errors[0]


def is_waiting() -> bool:
    """Return True if a call that exceeded its deadline is still running."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def without_secret(text: str, queries: bool = True) -> str:
    """Return a text without the passwords, their users and, with `queries`, the queries of the URIs in it.

    A secret may contain any character but white space, also those that a URI should encode. A URI that was taken for a
    path has one slash.
    """
    text = re.sub(r"(:/+)[^/?@\s]*(:|%3[Aa])\S*@", r"\1***@", text)
    if not queries:
        return text
    return re.sub(r"(:/+[^\s?]*)\?[^\s,;'\")\]]*", r"\1", text)


def explain(error: OSError, verb: str = "read") -> str:
    """Return the meaning of a store's error, and its text; `verb` names the call."""
    text = without_secret(" ".join(str(error).split())).removesuffix(".")
    causes = (cause.format(verb=verb) for signs, cause in _CAUSES if any(_says(text, sign) for sign in signs))
    return f"{next(causes, f'it cannot be {PARTICIPLES[verb]}')} ({text})"


PARTICIPLES = {"read": "read", "write": "written"}


def _says(text: str, sign: str) -> bool:
    return re.search(rf"\b{sign}\b" if sign.isdigit() else sign, text) is not None


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
        info = self._ask(lambda: self.filesystem.get_file_info(self.path))
        size: int | None = info.size if info.is_file else None
        return size

    def modified_s(self) -> float:
        """Return the time of the last write to the file, in seconds since 1970."""
        info = self._ask(lambda: self.filesystem.get_file_info(self.path))
        if not info.is_file:
            raise FileNotFoundError(str(self))
        return float(info.mtime_ns or 0) / 1e9

    def sizes_below(self) -> list[int]:
        """Return the sizes of all files in the folder and below."""
        return [info.size for info in self._list(recursive=True) if info.is_file]

    def read_bytes(self) -> bytes:
        def read() -> bytes:
            with self.filesystem.open_input_stream(self.path) as source:
                content: bytes = source.read()
            return content

        return self._ask(read, LISTING_DEADLINE_S)

    def open_stream(self) -> Any:
        """Return the file as a stream of bytes, to be closed; raises OSError as pyarrow does."""
        return self.filesystem.open_input_stream(self.path, buffer_size=READ)

    def open_file(self) -> Any:
        """Return the file open for reading at any place, to be closed; raises OSError as pyarrow does."""
        return self.filesystem.open_input_file(self.path)

    def folders(self) -> Iterator["RemotePath"]:
        """Yield the folders in the folder, ordered by name."""
        return (self / info.base_name for info in sorted(self._list(), key=lambda info: info.path) if not info.is_file)

    def remove(self) -> None:
        """Remove the file, or the folder with its content; nothing happens if there is neither."""

        def remove() -> None:
            kind = self.filesystem.get_file_info(self.path)
            if kind.is_file:
                self.filesystem.delete_file(self.path)
            elif kind.type.name == "Directory":
                self.filesystem.delete_dir(self.path)

        self._ask(remove, LISTING_DEADLINE_S, DiskError)

    def write_bytes(self, content: bytes) -> None:
        """Write the whole file at once; an existing one is replaced. Retries if the store refuses."""
        with within(sending_s(len(content))):
            for pause_s in PAUSES_S:
                with suppress(DiskError):
                    return self._put(content)
                time.sleep(pause_s)
            return self._put(content)

    def _put(self, content: bytes) -> None:
        def put() -> None:
            with self.filesystem.open_output_stream(self.path) as sink:
                sink.write(content)

        self._ask(put, LISTING_DEADLINE_S, DiskError)

    def _list(self, recursive: bool = False) -> Any:
        from pyarrow import fs

        selector = fs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        return self._ask(lambda: self.filesystem.get_file_info(selector), LISTING_DEADLINE_S)

    def _ask(
        self,
        call: Callable[[], Result],
        deadline_s: float | None = None,
        raising: type[UserError] = CheckpointError,
    ) -> Result:
        return ask(self.uri, call, deadline_s, raising, "write" if raising is DiskError else "read", FileNotFoundError)

"""The bytes of a text file from its beginning to its end, decompressed according to its name."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from persia_cli.data.files import CODECS, DataFile
from persia_cli.errors import DataError, one_line

Progress = Callable[[int], None]
"""Called with the number of bytes read from the file, before decompression."""


class TextStream:
    """A file that is read from beginning to end; raises DataError if it cannot be read."""

    def __init__(self, filesystem: Any, file: DataFile, progress: Progress | None = None) -> None:
        self._file, self._progress = file, progress
        codec = CODECS.get(Path(file.path).suffix.lower())
        try:
            self._raw = filesystem.open_input_file(file.path)
            self._bytes = pa.CompressedInputStream(self._raw, codec) if codec else self._raw
        except OSError as error:
            raise DataError(f"{file.path}: cannot be read ({one_line(error)})") from error

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes.close()
        self._raw.close()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; raises DataError if the file is damaged."""
        if self._progress is not None:
            self._progress(self._raw.tell())
        try:
            return bytes(self._bytes.read(size) if size >= 0 else self._bytes.read())
        except OSError as error:
            raise DataError(f"{self._file.path}: cannot be read ({one_line(error)}); write it again") from error


def as_text(stream: Any) -> io.TextIOWrapper:
    """Return a stream's lines as text with their line ends; bytes that are not UTF-8 are replaced."""
    return io.TextIOWrapper(io.BufferedReader(_Raw(stream), 1 << 20), "utf-8-sig", errors="replace", newline="")


class _Raw(io.RawIOBase):
    """An adapter of a stream for Python's own readers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        more = self._stream.read(len(buffer))
        buffer[: len(more)] = more
        return len(more)

"""A stream that is lent to pyarrow's CSV reader, and surely given back: its threads do not outlive the reading.

pyarrow reads ahead, parses and tidies up in threads of its own, which call Python to read, for bad rows and to drop
what they hold. They may still do so when the reader has failed or is dropped. If the interpreter ends at that time,
it ends such a thread wherever it is: then C++ aborts the process, or waits for that thread for ever.
"""

import time
from collections.abc import Callable, Generator
from traceback import clear_frames
from typing import Any
from weakref import ref

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

GIVEN_BACK_S = 60.0
"""Longest wait for pyarrow's threads; they end with the read that they are in, and storage has shorter deadlines."""
_LOOK_AGAIN_S = 0.001


class _Block(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Bytes that hold the stream they came from, so that it is there as long as any of them are."""

    source: "_LentStream"


class _Loan:
    """What becomes of a stream while it is lent."""

    def __init__(self) -> None:
        self.is_over = False
        self.error: Exception | None = None
        """The error of reading the stream."""


class _LentStream:
    """All that pyarrow has of ours, in one object: as soon as no one has it any more, no thread will call Python."""

    closed = False

    def __init__(self, stream: Any, on_bad_row: Callable[[Any], str], loan: _Loan) -> None:
        self._stream, self._on_bad_row, self._loan = stream, on_bad_row, loan

    def read(self, size: int = -1) -> _Block:
        """Return the next bytes; none after an error, or if nobody waits for them any more."""
        more = b""
        if not self._loan.is_over and self._loan.error is None:
            try:
                more = self._stream.read(size)
            except Exception as error:
                self._loan.error = error
        block = np.frombuffer(more, np.uint8).view(_Block)
        block.source = self
        return block

    def skip(self, row: Any) -> str:
        """Tell of a row that cannot be read, and what pyarrow is to do about it."""
        return self._on_bad_row(row)

    def readable(self) -> bool:
        """Return True: the stream can be read, as files can."""
        return True

    def close(self) -> None:
        """Do nothing: the code that opened the stream closes it."""


def csv_batches(
    stream: Any,
    on_bad_row: Callable[[Any], str],
    reading: arrow_csv.ReadOptions,
    parsing: arrow_csv.ParseOptions,
    converting: arrow_csv.ConvertOptions,
) -> Generator[Any, None, None]:
    """Yield the batches of a CSV; when it ends, in whatever way, no thread of pyarrow uses the stream any more.

    Raises what `stream` raises, and pyarrow.ArrowInvalid for what is not CSV.
    """
    loan = _Loan()
    lent: Any = _LentStream(stream, on_bad_row, loan)
    held = ref(lent)
    reader: Any = None
    try:
        parsing.invalid_row_handler = lent.skip
        reader = arrow_csv.open_csv(lent, reading, parsing, converting)
        parsing.invalid_row_handler = lent = None
        yield from reader
    except pa.ArrowInvalid as error:
        if loan.error is None:
            raise
        raise loan.error from error  # to pyarrow, the file ends there
    finally:
        parsing.invalid_row_handler = lent = reader = None
        loan.is_over = True
        _wait_until_gone(held, loan)
    if loan.error is not None:
        raise loan.error


def _wait_until_gone(held: Any, loan: _Loan) -> None:
    deadline = time.monotonic() + GIVEN_BACK_S
    while held() is not None and time.monotonic() < deadline:
        if loan.error is not None:
            clear_frames(loan.error.__traceback__)  # one of them is of the stream's `read`, and holds it
        time.sleep(_LOOK_AGAIN_S)

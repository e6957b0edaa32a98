"""A stream that pyarrow reads ahead of in threads: they are done with it before the end of the reading is known."""

import gc
import io
from threading import Event
from typing import Any

import pytest

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.read.csv_files import read_csv
from persia_cli.data.read.lent_stream import _Block, _LentStream
from persia_cli.data.read.text_files import UnreadRows
from persia_cli.errors import DataError

GOOD = b"1,2,a\n" * (2 << 20)
BAD = b"1,2,\xfc\n" + GOOD
IN_TIME_S = 0.2


class Slow(io.BytesIO):
    """A file that is still reading ahead when the first of it has turned out to be wrong."""

    def __init__(self, content: bytes, seen: Event, error: Exception | None = None) -> None:
        super().__init__(content)
        self.seen, self.error, self.reads, self.is_read = seen, error, 0, False

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes: late, unless the end of the reading is seen before."""
        self.is_read = True
        self.reads += 1
        if self.reads > 2:
            self.seen.wait(IN_TIME_S)
            if self.error is not None:
                raise self.error
        more = super().read(size)
        self.is_read = False
        return more

    def close(self) -> None:
        """Stay open, so that a late read finds what it looks for."""


def _left() -> list[Any]:
    # By their types: what an object says of its class may be computed, and warn of what it stands for.
    return [each for each in gc.get_objects() if issubclass(type(each), _LentStream | _Block)]


def test_a_refused_file_is_not_read_any_more_when_its_error_is_known() -> None:
    seen = Event()
    file = Slow(b"y,d,c\n" + BAD, seen)
    with pytest.raises(Exception, match="invalid UTF8"):
        list(read_csv(lambda: file, CsvFormat(), ",", UnreadRows()))
    was_read = file.is_read
    seen.set()
    assert not was_read
    assert not _left()


def test_a_reading_that_is_broken_off_is_over_at_once() -> None:
    seen = Event()
    late = Slow(b"y,d,c\n" + GOOD, seen)
    opened: Any = iter([io.BytesIO(b"y,d,c\n" + GOOD), late])
    tables = read_csv(lambda: next(opened), CsvFormat(), ",", UnreadRows())
    next(tables)
    tables.close()
    was_read = late.is_read
    seen.set()
    assert not was_read
    assert not _left()


def test_the_error_of_reading_is_told_whatever_pyarrow_makes_of_the_end_of_the_file() -> None:
    damaged = DataError("a.csv: cannot be read; write it again")
    file = Slow(b"y,d,c\n" + GOOD, Event(), damaged)
    with pytest.raises(DataError) as caught:
        list(read_csv(lambda: file, CsvFormat(), ",", UnreadRows()))
    assert caught.value is damaged
    assert not _left()


def test_rows_that_cannot_be_read_are_told_and_nothing_is_held() -> None:
    unread = UnreadRows()
    rows = list(read_csv(lambda: io.BytesIO(b"y,d,c\n1,2\n" + GOOD), CsvFormat(), ",", unread))
    assert (unread.count, sum(len(each) for each in rows)) == (1, 2 << 20)
    assert not _left()

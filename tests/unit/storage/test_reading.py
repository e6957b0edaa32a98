"""Files that are read on another thread, or whose checksum is computed while they are read."""

import io
import random
import threading
from collections.abc import Iterator

import pytest
from xxhash import xxh128

from persia_cli.storage.hashed_files import HashedSource, read_ahead


def numbers(stop: int, closed: list[str], error: Exception | None = None) -> Iterator[int]:
    try:
        yield from range(stop)
        if error is not None:
            raise error
    finally:
        closed.append(threading.current_thread().name)


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_all_items_come_in_order(stop: int) -> None:
    closed: list[str] = []
    assert list(read_ahead(numbers(stop, closed))) == list(range(stop))
    assert len(closed) == 1
    assert closed[0] != threading.current_thread().name, "they were read on another thread"


def test_an_error_comes_after_what_was_read_before_it() -> None:
    closed: list[str] = []
    ahead = read_ahead(numbers(3, closed, ValueError("broken")))
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="broken"):
        next(ahead)
    assert len(closed) == 1


def test_stopping_early_leaves_no_open_file_and_no_thread() -> None:
    closed: list[str] = []
    before = threading.active_count()
    ahead = read_ahead(numbers(1000, closed))
    assert next(ahead) == 0
    ahead.close()
    assert len(closed) == 1
    assert threading.active_count() == before


class Slowly(io.BytesIO):
    """Gives at most some bytes at a time, as sockets and large files do."""

    def read(self, size: int = -1) -> bytes:
        return super().read(min(size, 7) if size >= 0 else 7)


@pytest.mark.parametrize("stream", [io.BytesIO, Slowly])
def test_content_and_checksum_are_those_of_the_file(stream):
    rng = random.Random(3)
    for size in (0, 1, 6, 7, 8, 1000):
        content, counted = rng.randbytes(size), []
        with HashedSource(stream(content), counted.append) as source:
            read = b"".join(source.read(rng.randrange(1, 40)) for _ in range(rng.randrange(4)))
            assert content.startswith(read)
            assert source.finish() == xxh128(content).hexdigest()
        assert sum(counted) == size

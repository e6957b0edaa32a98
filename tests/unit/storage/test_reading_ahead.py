"""Reading on another thread: the same items, the same errors, and nothing left open."""

import threading
from collections.abc import Iterator

import pytest

from persia_cli.storage.reading_ahead import read_ahead


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

"""Reading on another thread than the one that uses the items."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield the items of an iterator; another thread reads the next one while the last one is used.

    So at most two are in memory. Errors of the iterator are raised here. A generator is closed at the end.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="reading") as thread:
        following = thread.submit(next, items, None)
        try:
            while (item := following.result()) is not None:
                following = thread.submit(next, items, None)
                yield item
        finally:
            following.exception()
            if close := getattr(items, "close", None):
                close()

"""Reading on a thread beside the one that uses what was read."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield the items of an iterator; another thread takes the next one from it while the last one is used.

    So at most two are in memory. What the iterator raises is raised here. A generator is closed at the end.
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

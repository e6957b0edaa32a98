"""Files of the cache are made by one process at a time."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from persia_cli.data.read.cache import building
from persia_cli.errors import DataError


def test_one_makes_a_file_and_the_others_wait_for_it(tmp_path: Path) -> None:
    path = tmp_path / "cache/persia-a.events"

    def make(_: int) -> bool:
        with building(path, 20.0) as is_missing:
            if is_missing:
                with path.open("xb") as file:
                    file.write(b"made")
        return is_missing

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(make, range(8))) == 1
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_wait_for_another_has_a_deadline(tmp_path: Path) -> None:
    path = tmp_path / "persia-a.events"
    refused = pytest.raises(DataError, match=r"another process has been making .*persia-a.events for 0 s")
    with building(path), refused, building(path, 0.1):
        pass

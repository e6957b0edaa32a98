"""The order of rows in a file, against numpy's sort by two columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.kernels.table.old_rows import Listed, order_rows

KEYS = st.integers(0, 2**64 - 1) | st.integers(0, 20) | st.integers(2**64 - 20, 2**64 - 1)


def listed(rows: list[tuple[int, int]], room: int = 0) -> Listed:
    """Rows of these keys and tables, each with other values in the other columns; more space than needed."""
    keys, tables = (np.array([row[column] for row in rows] + [7] * room, np.uint64) for column in (0, 1))
    number = np.arange(len(rows) + room)
    return Listed(
        keys, tables.astype(np.uint16), (number + 10**6).astype(np.uint32),
        (number + 2 * 10**6).astype(np.uint32), number - 5,
    )  # fmt: skip


def check(rows: list[tuple[int, int]], parts: int) -> None:
    given_, found = listed(rows, room=3), listed([(0, 0)] * len(rows), room=2)
    after = [array[len(rows) :].copy() for array in found]
    order_rows(given_, len(rows), found, np.full(parts, 9, np.int64))
    order = np.lexsort((given_.tables[: len(rows)], given_.keys[: len(rows)]))
    for name, before, array, rest in zip(Listed._fields, given_, found, after, strict=True):
        assert array[: len(rows)].tolist() == before[order].tolist(), name
        assert array[len(rows) :].tolist() == rest.tolist(), f"{name} beyond the rows is not touched"


@given(st.lists(st.tuples(KEYS, st.integers(0, 3)), unique=True, max_size=60), st.integers(2, 100))
def test_rows_are_ordered_by_key_then_table(rows: list[tuple[int, int]], parts: int) -> None:
    check(rows, parts)


@pytest.mark.parametrize("parts", [2, 1000, 4096])
def test_many_rows_of_a_few_partitions(parts: int) -> None:
    rng = np.random.default_rng(parts)
    keys = rng.integers(5 << 52, 9 << 52, 3000, np.uint64)
    check([(int(key), int(table)) for key in keys for table in (1, 0)], parts)

"""Which lists are taken for ids of another column: never without evidence."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.data.inspect.inspection import Inspection, inspect_data
from persia_cli.data.inspect.sharing import _is_named_after

ROWS, USERS, ITEMS, BRANDS, ATTRS = 6000, 900, 400, 60, 80


def lists(ids: Any) -> Any:
    """Lists of five ids each."""
    return pa.array(np.asarray(ids).reshape(ROWS, 5).tolist())


def look(folder: Path, columns: dict[str, Any]) -> Inspection:
    labels = {"click": np.arange(ROWS) % 3 == 0}
    pq.write_table(pa.table({**labels, **columns}), folder / "a.parquet")
    return inspect_data(str(folder), lambda done, total: None)


@pytest.fixture
def encoded() -> dict[str, Any]:
    """Users, items, brands and attributes, each numbered from 1, the users with the longest range and first."""
    rng = np.random.default_rng(3)
    return {
        "user": rng.integers(1, USERS + 1, ROWS),
        "item_id": rng.integers(1, ITEMS + 1, ROWS),
        "brand": rng.integers(1, BRANDS + 1, ROWS),
        "hist_item": lists(rng.integers(1, ITEMS + 1, 5 * ROWS)),
        "attrs": lists(rng.integers(1, ATTRS + 1, 5 * ROWS)),
        "history": lists(rng.integers(1, ITEMS + 1, 5 * ROWS)),
    }


def test_columns_numbered_from_1_share_by_name_alone(tmp_path: Path, encoded: dict[str, Any]) -> None:
    found = look(tmp_path, encoded)
    tables = {name: guess.table for name, guess in found.roles.items() if guess.role == "sparse"}
    assert tables == {"user": None, "item_id": None, "brand": None, "hist_item": "item_id", "attrs": None,
                      "history": None}  # fmt: skip
    lines = {line.split("name: ")[1].split(",")[0]: line for line in found.suggestion.splitlines() if "name: " in line}
    assert "table: item_id" in lines["hist_item"]
    assert "table:" not in lines["attrs"].partition("#")[0]
    assert lines["attrs"].endswith(
        "80 ids; numbered alike as user and item_id and brand, which need not mean the same: `table: NAME` if it does"
    )


def test_ids_that_chance_cannot_have_in_common_are_evidence(tmp_path: Path, encoded: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    items = rng.integers(0, 2**62, ITEMS)
    sparse = np.sort(rng.choice(20_000, ITEMS, replace=False))
    columns = {
        **encoded,
        "sku": items[encoded["item_id"] - 1],
        "seen": lists(items[rng.integers(0, ITEMS, 5 * ROWS)]),
        "film": sparse[encoded["item_id"] - 1],
        "watched": lists(sparse[rng.integers(0, ITEMS, 5 * ROWS)]),
        "word": pa.array([f"w{n}" for n in encoded["item_id"]]),
        "text": pa.array([[f"w{n}", f"w{n % 400 + 1}"] for n in encoded["item_id"]]),
    }
    found = look(tmp_path, columns)
    assert {name: found.roles[name].table for name in ("seen", "watched", "text", "attrs")} == {
        "seen": "sku", "watched": "film", "text": "word", "attrs": None,
    }  # fmt: skip


def test_a_name_alone_is_no_evidence(tmp_path: Path, encoded: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    columns = {**encoded, "item_tags": lists(rng.integers(10_000, 10_100, 5 * ROWS))}
    columns["item_colours"] = columns["attrs"]
    roles = look(tmp_path, columns).roles
    guess = roles["item_tags"]
    assert (roles["item_colours"].table, bool(roles["item_colours"].doubt)) == (None, True)  # numbered alike
    assert (guess.table, guess.doubt) == (None, "")


@pytest.mark.parametrize(
    ("name", "other", "named"),
    [
        ("hist_item", "item_id", True), ("last_items", "item", True), ("itemHistory", "item", True),
        ("recentCategories", "category", True), ("item_id_list", "item_id", True), ("clicked_ad_ids", "ad_id", True),
        ("item_tags", "item", False), ("last", "item", False), ("user_items", "user", False), ("last", "last_id", True),
    ],
)  # fmt: skip
def test_names(name: str, other: str, named: bool) -> None:
    assert _is_named_after(name, other) == named

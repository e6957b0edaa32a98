"""The recipe of next items, on the layouts of its two sources."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError
from tests.support.prepared import prepare


def rows_of(report: Any) -> list[tuple[str, int, list[int], int]]:
    """(part, user, history, item) of all rows, in their order."""
    rows = pq.read_table(report.files[0]).to_pylist()
    assert {row["label"] for row in rows} == {1}
    return [(row["part"], row["user"], row["last_items"], row["item"]) for row in rows]


def test_a_line_is_a_user_and_its_last_items_evaluate(tmp_path: Path) -> None:
    (tmp_path / "Beauty.txt").write_text("1 5 6 7 8\n\n9 5 6\n4 7\n8\n2 1 2 1\n")
    report = prepare("next_item", tmp_path / "Beauty.txt", tmp_path / "out")
    assert rows_of(report) == [
        ("test", 1, [5, 6, 7], 8), ("test", 9, [5], 6), ("test", 2, [1, 2], 1),
        ("valid", 1, [5, 6], 7), ("valid", 2, [1], 2),
        ("train", 1, [5], 6),
    ]  # fmt: skip
    facts = inspect(compose_run(["conf=beauty", f"dataset.path={tmp_path / 'out'}"]).dataset)
    assert (facts.train_rows, facts.eval_rows, facts.test_rows) == (1, 2, 3)


def test_ratings_are_in_the_order_of_their_times_and_lines(tmp_path: Path) -> None:
    lines = ["2::10::5::300", "1::11::1::200", "1::12::5::100", "1::13::3::200", "2::14::4::300"]
    (tmp_path / "ratings.dat").write_text("\n".join(lines))
    report = prepare("next_item", tmp_path, tmp_path / "out")
    assert rows_of(report) == [("test", 1, [12, 11], 13), ("test", 2, [10], 14), ("valid", 1, [12], 11)]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("Beauty.txt", "1 2 3\n4 five\n", "Beauty.txt, line 2: expected integers, a user and its items"),
        ("Beauty.txt", "\n", "Beauty.txt is empty"),
        ("ratings.dat", "1::2::3\n", "ratings.dat, line 1: expected user::movie::rating::timestamp"),
        ("ratings.dat.gz", "1::2::3::4\n", "ratings.dat.gz cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=sentence):
        prepare("next_item", tmp_path / name, tmp_path / "out")

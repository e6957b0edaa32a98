"""Whole numbers as amounts, as ids, or as both, by names, values and the label."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.inspect.inspection import Inspection, inspect_data
from persia_cli.data.read.facts import inspect

ROWS = 6000


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def codes(number: int, step: int = 1) -> Any:
    """Values without an order: each is as frequent as it happens to be."""
    weights = draw(number).random(number) ** 2
    return draw(1).choice(number, ROWS, p=weights / weights.sum()) * step


def follows(values: Any) -> Any:
    """A label that is the more frequent the greater a value is."""
    ranks = np.argsort(np.argsort(values)) / ROWS
    return (draw(2).random(ROWS) < 0.1 + 0.7 * ranks).astype(np.int8)


def differs(values: Any) -> Any:
    """A label that differs between values, not by their order."""
    chances = draw(3).permutation(np.linspace(0.05, 0.95, 1000))
    return (draw(4).random(ROWS) < chances[np.asarray(values) % 1000]).astype(np.int8)


def look(path: Path, **columns: Any) -> Inspection:
    pq.write_table(pa.table(columns), path / "a.parquet")
    return inspect_data(str(path), lambda done, total: None)


COUNTS = draw(5).geometric(0.02, ROWS) - 1
BELL = np.clip(draw(6).normal(40, 12, ROWS), 17, 90).astype(int)
PRICES = (np.exp(draw(7).normal(5, 1, ROWS)) // 5 * 5).astype(int)
NOISE = draw(8).integers(0, 2, ROWS)


@pytest.mark.parametrize(
    ("name", "values", "label", "use"),
    [
        ("x", COUNTS, NOISE, "number"),  # a long tail
        ("x", BELL, NOISE, "number"),  # neighbours are about equally frequent
        ("price", PRICES, NOISE, "number"),
        ("x", codes(300, 7), follows(codes(300, 7)), "both"),  # an order in the label alone
        ("x", codes(40), follows(codes(40)), "both"),
        ("x", codes(40), NOISE, "ids"),
        ("x", codes(300), differs(codes(300)), "ids"),
        ("x", COUNTS, differs(COUNTS), "ids"),  # ids that are numbered by how frequent they are
        ("num_items", codes(40), NOISE, "both"),
        ("num_items", codes(40), differs(codes(40)), "both"),
        ("user_id", COUNTS, NOISE, "ids"),
        ("zip", BELL, NOISE, "ids"),
        ("x", codes(5), NOISE, "ids"),
        ("x", codes(5), follows(codes(5)), "both"),
        ("x", codes(6) + 1000, follows(codes(6)), "ids"),
        ("x", pa.array(np.arange(ROWS) % 3 == 0), NOISE, "number"),
        ("x", (np.arange(ROWS) % 3 == 0) * 1, NOISE, "number"),
        ("user_id", pa.array(draw(9).integers(0, 1500, ROWS) * 1.0, mask=COUNTS < 9), NOISE, "ids"),  # as pandas writes
        ("x", draw(10).permutation(10 * ROWS)[:ROWS], NOISE, "unused"),
        ("x", np.exp(draw(12).normal(11, 0.5, ROWS)).astype(int), NOISE, "both"),  # nearly all different, but a tail
        ("income", draw(10).permutation(10 * ROWS)[:ROWS], NOISE, "both"),  # although no value is there twice
    ],
)
def test_whole_numbers_are_amounts_ids_or_both(tmp_path: Path, name: str, values: Any, label: Any, use: str) -> None:
    found = look(tmp_path, **{name: values, "other": draw(11).normal(0, 1, ROWS), "label": label})
    dataset = ParquetDataset.model_validate(yaml.safe_load(found.suggestion))
    is_dense = name in {each.name for each in dataset.dense_features}
    is_sparse = name in {each.column_name for each in dataset.sparse}
    assert {"number": (True, False), "both": (True, True), "ids": (False, True), "unused": (False, False)}[use] == (
        is_dense,
        is_sparse,
    )
    assert inspect(dataset).train_rows == pytest.approx(ROWS * 0.8, rel=0.05)
    tables = {each.table_name for each in dataset.sparse if each.column_name == name}
    assert tables <= set(found.table_rows) or found.profile.columns[name].distinct is None


def test_a_number_in_many_parts_is_in_buckets_with_a_name_of_their_own(tmp_path: Path) -> None:
    values = codes(300, 7)
    columns = {"x": values, "x_bucket": codes(5), "label": follows(values)}
    suggested = yaml.safe_load(look(tmp_path, **columns).suggestion)
    assert {"name": "x_buckets", "column": "x", "buckets": 16} in suggested["sparse"]
    assert inspect(ParquetDataset.model_validate(suggested)).train_rows == pytest.approx(ROWS * 0.8, rel=0.05)


@pytest.mark.parametrize(
    ("values", "transform"),
    [
        (draw(12).normal(0, 1, ROWS).clip(-3, 3), None),
        (draw(12).random(ROWS), None),
        (draw(12).normal(0, 0.01, ROWS), "standardise"),
        (draw(12).normal(50, 10, ROWS), "standardise"),
        (np.where(np.arange(ROWS) % 2000, draw(12).random(ROWS), 1e6), "log1p"),
        (BELL, "standardise"),
        (COUNTS**2, "log1p"),
    ],
)
def test_a_transform_brings_numbers_near_1(tmp_path: Path, values: Any, transform: str | None) -> None:
    suggested = yaml.safe_load(look(tmp_path, amount=values, label=NOISE).suggestion)
    assert suggested["dense"] == [{"name": "amount", "transform": transform} if transform else "amount"]


def test_a_label_of_words_is_evidence_too(tmp_path: Path) -> None:
    values = codes(40)
    answers = pa.array(np.where(follows(values), "yes", "no"))
    assert look(tmp_path, x=values, label=answers).roles["x"].buckets == 0

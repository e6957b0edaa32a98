"""Written, mapped and read rows equal those of the training store, pooled as by the training code."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.data.read.ids import RARE_ID
from persia_cli.errors import UserError
from persia_cli.kernels.rows import hashing
from persia_cli.serving.description import ROWS, FrozenFeature, FrozenGroup, Missing
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.row_reader import GroupReader, pooled_name, sequence_names
from persia_cli.serving.row_writer import TableRules, encoded, planned_group, writing_group
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.layout import (
    EmbeddingLayout,
    FeatureSpec,
    GroupSpec,
    RowOptimizer,
    Storage,
    TableSpec,
    table_salt,
)
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows
from persia_cli.training.inputs import group_shapes
from persia_cli.wire.messages import GroupRows
from tests import naive
from tests.support.small_model import USERS, write_small_model

DIM = 6
POOLINGS = ("sum", "mean", "sqrtn", "none")


def layout_of(
    dtype: Storage, rounds: int, admission: float = 1.0, min_count: int = 1, poolings: tuple[str, ...] = POOLINGS
) -> EmbeddingLayout:
    """Two tables of one group, read by a feature of each pooling; the second one may be a hash stack."""
    tables = (
        TableSpec("items", 0, table_salt("items"), 0.1, admission, min_count),
        TableSpec("users", 1, table_salt("users"), 0.3, rounds=rounds, size=20 if rounds else 0),
    )
    group = GroupSpec(0, DIM, RowOptimizer("sgd", 0.1), tables, 4096, 4, dtype)
    features = tuple(
        FeatureSpec(f"{pooling}-{table}", 0, table, pooling, 3 if pooling == "none" else None)
        for pooling in poolings
        for table in (0, 1)
    )
    return EmbeddingLayout((group,), features, seed=5)


def rules_of(layout: EmbeddingLayout, rows: dict[str, int]) -> list[TableRules]:
    """The tables as an export describes them."""
    return [
        TableRules(
            *(each.name, rows[each.name], each.salt, each.init_bound, round(each.admission * 2**24)),
            *(each.min_count, each.rounds, each.size),
        )
        for each in layout.groups[0].tables
    ]


def features_of(layout: EmbeddingLayout) -> list[FrozenFeature]:
    """The features as in an exported model."""
    names = [table.name for table in layout.tables()]
    return [
        FrozenFeature(each.name, each.group, names[each.table], each.pooling, each.max_length)
        for each in layout.features
    ]


def write(folder: Path, layout: EmbeddingLayout, rows: dict[str, dict[int, np.ndarray]]) -> FrozenGroup:
    """Write the rows of each table by id, in several portions."""
    (folder / ROWS).mkdir(parents=True)
    group = layout.groups[0]
    planned = planned_group(0, DIM, "float32", group.dtype, rules_of(layout, {name: len(rows[name]) for name in rows}))
    with writing_group(folder, planned) as writer:
        for place, table in enumerate(group.tables):
            ids = list(rows[table.name])
            keys = naive.keys_of(table.salt, ids)
            order = np.argsort(keys)
            values = np.array([rows[table.name][ids[at]] for at in order], np.float32).reshape(-1, DIM)
            for part in np.array_split(np.arange(len(ids)), 3):
                writer.add(place, keys[order[part]], values[part])
    return planned


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["float32", "bfloat16", "float16", "int8"]),
    st.sampled_from([0, 2]),
    st.booleans(),
)
def test_a_batch_reads_what_training_would(
    tmp_path_factory, seed: int, dtype: Storage, rounds: int, single: bool
) -> None:
    """Known ids have their rows; others have their initial value in training: admitted or not, of any dtype."""
    draw, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("rows")
    layout = layout_of(
        dtype,
        rounds,
        admission=draw.choice([1.0, 0.5]),
        min_count=int(draw.choice([1, 1, 2])),
        poolings=POOLINGS[: draw.choice([3, 4])],
    )
    shard, planner, size = Shard(layout, 0, 1), RowPlanner(layout, 1), int(draw.integers(1, 6))
    known = planner.plan(*batch_of(draw, len(layout.features), size, single), size)[0]
    shard.look_up(0, known.keys, known.tables, 0, create=True)
    stored = shard.look_up(0, known.keys, known.tables, 0, create=False)
    ids = np.empty_like(known.keys)
    hashing.recover_ids(known.keys, known.tables, layout.salts(), ids)
    vectors = decode_rows(stored, DIM, "float32")
    rows: dict[str, dict[int, np.ndarray]] = {table.name: {} for table in layout.tables()}
    for id_, table, row in zip(ids.tolist(), known.tables.tolist(), vectors, strict=True):
        if row.any():
            rows[layout.tables()[table].name][id_] = row
    group = write(folder, layout, rows)
    given, offsets = batch_of(draw, len(layout.features), size, single)
    for missing in ("zeros", "init"):
        reader = GroupReader(folder, group, features_of(layout), layout.seed, missing)
        ones, absent = np.empty(len(layout.features), np.bool_), np.zeros(len(layout.features), np.int64)
        assert hashing.check_offsets(offsets, size, ones)
        found = reader.read(given, offsets, size, ones, absent)
        planned = planner.plan(given, offsets, size)[0]
        block = shard.look_up(0, planned.keys, planned.tables, 1, create=missing == "init")
        training = pytest.importorskip("persia_cli.training.pooling", reason="torch is not installed")
        copier = training.Copier(training.torch.device("cpu"))
        pooling = training.GroupPooling(group_shapes(layout)[0], copier)
        shown = GroupRows([block], planned.inverse, planned.offsets)
        pooled, sequences = pooling.stage(shown, pooling.leaf(shown)).pool(size)
        np.testing.assert_array_equal(found[pooled_name(0)], pooled.numpy())
        for number, feature in enumerate(layout.features):
            if feature.pooling == "none":
                for name, tensor in zip(sequence_names(number), sequences[feature.name], strict=True):
                    np.testing.assert_array_equal(found[name], tensor.numpy())


def batch_of(draw: np.random.Generator, features: int, size: int, single: bool) -> tuple[np.ndarray, np.ndarray]:
    """Ids and offsets of a batch."""
    lengths = np.ones(features * size, int) if single else draw.integers(0, 6, features * size)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)
    return draw.integers(0, 60, offsets[-1]).astype(np.uint64), offsets


@pytest.mark.parametrize("rounds", [0, 2])
def test_ids_without_a_row_get_that_of_rare_ids_if_there_is_one(tmp_path: Path, rounds: int) -> None:
    layout = layout_of("float32", rounds, poolings=("sum",))
    group = write(tmp_path, layout, {"items": {7: np.full(DIM, 2.0), RARE_ID: np.full(DIM, 3.0)}, "users": {}})
    offsets, ids = np.array([0, 1, 2, 3, 4], np.uint32), np.array([7, 8, 7, 8], np.uint64)
    for missing, unknown in (("zeros", 0.0), ("rare", 3.0)):
        reader = GroupReader(tmp_path, group, features_of(layout), layout.seed, missing)
        absent = np.zeros(2, np.int64)
        found = reader.read(ids, offsets, 2, np.full(2, True), absent)[pooled_name(0)]
        assert found[:, :, 0].tolist() == [[2.0, 0.0], [unknown, 0.0]]
        assert absent.tolist() == [1, 2 * max(1, rounds)]


@pytest.mark.parametrize(
    ("form", "value", "says"),
    [
        ("int8", np.nan, "not finite"),
        ("int8", 3e38, "too far apart for int8; use --rows float32"),
        ("bfloat16", 3.4e38, "beyond the range of bfloat16; use --rows float32"),
        ("float16", 1e6, "beyond the range of float16; use --rows bfloat16"),
        ("int4", 1e6, "beyond the range of float16"),
    ],
)
def test_rows_that_a_form_cannot_hold_are_refused(tmp_path: Path, form, value: float, says: str) -> None:
    layout = layout_of("float32", 0)
    (tmp_path / ROWS).mkdir()
    planned = planned_group(0, DIM, form, "float32", rules_of(layout, {"items": 1, "users": 0}))
    row = np.full((1, DIM), value, np.float32)
    row[0, 0] = -value if form == "int8" else 0.0
    with pytest.raises(UserError, match=f"table items has a .*{says}"), writing_group(tmp_path, planned) as writer:
        writer.add(0, naive.keys_of(table_salt("items"), [1]), row)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_finite_value_is_finite_in_bfloat16_or_refused(value: float) -> None:
    row = np.full((1, 1), value, np.float32)
    try:
        bits = encoded(row, "bfloat16", "items").view(np.uint16)
    except UserError:
        assert abs(value) > float(np.uint32(0x7F7F0000).view(np.float32))
    else:
        back = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        assert abs(float(back[0, 0]) - value) <= max(abs(value) * 2.0**-8, 2.0**-133)


def score(folder: Path, user: int, item: int = 4, missing: Missing | None = None) -> float:
    model = Predictor.open(folder, missing)
    batch = model.fields.batch({"user": [user], "item": [item], "words": [["lamp"]], "price": [0.5]})
    return float(model.predict(batch).logits[0, 0])


def test_ids_without_a_row_are_rare_ones_where_preparation_made_such(tmp_path: Path) -> None:
    shop = write_small_model(tmp_path / "shop", [*USERS, RARE_ID])
    rare = score(shop, RARE_ID)
    assert score(shop, 99) == score(shop, 99, missing="rare") == rare != score(shop, 99, missing="zeros")
    assert score(shop, 1) == score(shop, 1, missing="zeros") != rare
    # Items have no rare id.
    assert score(shop, 1, item=99) == score(shop, 1, item=99, missing="zeros")


def test_they_are_zeros_in_other_models(tmp_path: Path) -> None:
    shop = write_small_model(tmp_path / "shop")
    assert score(shop, 99) == score(shop, 99, missing="zeros") != score(shop, 99, missing="init")
    with pytest.raises(UserError, match="has a row for rare ids, so missing=rare has none to give"):
        Predictor.open(shop, missing="rare")

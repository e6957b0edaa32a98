"""Statements of the pages of docs/guide/ about single things are true; test_docs.py checks their commands."""

import re
from typing import Any

import numpy as np
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.kernels.rows import hashing
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.layout import EmbeddingLayout, FeatureSpec, GroupSpec, RowOptimizer, TableSpec, table_salt
from scripts.readme import ROOT, blocks
from tests.contract.test_docs import GUIDE

CHECKPOINTS = ROOT / "docs" / "checkpoint-format.md"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 16), st.integers(1, 2**32))
def test_the_formula_finds_the_rows_of_a_hash_stack(id_: int, rounds: int, size: int) -> None:
    [source] = [block.code for block in blocks(CHECKPOINTS.read_text()) if "def row_ids" in block.code]
    names: dict[str, Any] = {}
    exec(source, names)
    table = TableSpec("t", 0, table_salt("t"), 0.1, rounds=rounds, size=size)
    group = GroupSpec(0, 1, RowOptimizer("sgd", 0.1), (table,), 10, 1)
    layout = EmbeddingLayout((group,), (FeatureSpec("t", 0, 0, "sum"),), 0)
    [rows] = RowPlanner(layout, 1).plan(np.array([id_], np.uint64), np.array([0, 1], np.uint32), 1)
    saved = np.empty(rows.keys.size, np.uint64)
    hashing.recover_ids(rows.keys, rows.tables, layout.salts(), saved)
    assert saved[rows.inverse].tolist() == list(names["row_ids"](id_, rounds, size))


def test_your_own_data_shows_the_configuration_that_ships() -> None:
    [shown] = [block.code for block in blocks((GUIDE / "own-data.md").read_text()) if block.mark == "file shop.yaml"]
    assert shown + "\n" == (ROOT / "recipes" / "shop" / "shop.yaml").read_text()


def test_it_names_every_kind_of_network() -> None:
    kinds = {yaml.safe_load(file.read_text()).get("kind") for file in (ROOT / "conf" / "model").glob("*.yaml")} - {None}
    assert len(kinds) > 10
    text = (GUIDE / "models.md").read_text()
    assert [kind for kind in sorted(kinds) if f"| [`{kind}`](../reference/networks/{kind}.md) |" not in text] == []


def test_each_tuned_network_has_its_published_metrics() -> None:
    files = list((ROOT / "conf" / "leaderboards").glob("*/*.yaml"))
    assert len(files) > 30
    head = r"# BARS, {}: AUC 0\.\d{{4}}, log loss 0\.\d{{4}}(;.*)?\n"
    assert [file for file in files if not re.match(head.format(file.parent.name), file.read_text())] == []

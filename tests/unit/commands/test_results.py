"""The result of a finished job reports ids and rows that found no place."""

from typing import Any

import pytest

from persia_cli.commands.results import lost, undefined, unknown, worse_than_the_mean
from tests.support.runs import make_run

WROTE = {"event": "phase", "phase": "done"}


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ({}, ""),
        ({"a": {"rows": 5, "evicted": 0, "refused": 0}, "b": {}}, ""),
        ({"a": {"evicted": 1234}, "b": {"rows": 9}}, "rows evicted: 1,234 (all of a)"),
        (
            {"a": {"evicted": 1, "not_admitted": 5}, "b": {"evicted": 2000}},
            "rows evicted: 2,001 (2,000 of b); ids not admitted: 5 (all of a)",
        ),
    ],
)
def test_what_was_lost(tables: dict[str, Any], text: str) -> None:
    early = {"event": "tables", "tables": {"a": {"evicted": 99}}}
    assert lost([WROTE, early, {"event": "tables", "tables": tables}, WROTE]) == text


def test_undefined_metrics_have_a_reason_for_each_label() -> None:
    there = {"auc_a": 0.5, "gauc_a": None, "pr_auc_a": 0.5, "log_loss_a": 0.4}
    alone = {"auc_b": None, "gauc_b": None, "pr_auc_b": None, "log_loss_b": 0.4}
    assert undefined(there | alone) == [
        "GAUC of a: not defined, because no value of dataset.group_by has samples of both classes",
        "AUC, GAUC, PR-AUC of b: not defined, because no evaluation sample is positive",
    ]
    assert undefined({"auc": 0.5, "pr_auc": 1.0}) == []


def test_a_model_that_is_worse_than_the_mean_label_is_reported() -> None:
    line = {"step": 40, "ne_a": 1.25, "ne_b": 0.99, "ne_c": 1.5}
    losses = {"c": {"kind": "bce", "pos_weight": 3}}
    run = make_run(dataset={"labels": ["a", "b", "c"], "sparse": ["x"]}, train={"batch_size": 32, "losses": losses})
    text = worse_than_the_mean(run, line)
    assert text is not None
    assert text.startswith("NE of a is 1.25 at step 40: ")
    assert "checkpoint.best_by=auc_minus_log_loss_a" in text
    assert worse_than_the_mean(run, line | {"ne_a": None}) is None


def test_what_was_unknown() -> None:
    tables = {
        "user": {"reads": 100, "reads_known": 90},
        "item": {"reads": 300, "reads_known": 300},
        "shop": {"reads": 100, "reads_known": 100, "look_ups": 7},
        "(dense)": {"rows": 3},
    }
    text = "2.00% of the ids scored have no row and count as zeros (user 10.00%)"
    assert unknown([WROTE, {"event": "tables", "tables": tables}]) == text
    assert unknown([WROTE]) == unknown([{"event": "tables", "tables": {"user": {"reads": 5, "reads_known": 5}}}]) == ""

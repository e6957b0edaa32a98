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
            {"a": {"evicted": 1, "not_admitted": 5}, "b": {"evicted": 2000, "refused": 7, "gradients_refused": 1}},
            "rows evicted: 2,001 (2,000 of b); ids refused for lack of space: 7 (all of b); ids not admitted: 5 (all "
            "of a); gradients refused that were not finite: 1 (all of b)",
        ),
    ],
)
def test_what_was_lost(tables: dict[str, Any], text: str) -> None:
    early = {"event": "tables", "tables": {"a": {"evicted": 99}}}
    assert lost([WROTE, early, {"event": "tables", "tables": tables}, WROTE]) == text


def test_a_job_that_ended_early_prints_nothing() -> None:
    assert lost([]) == lost([WROTE]) == ""


def test_undefined_metrics_have_a_reason_for_each_label() -> None:
    there = {"auc_a": 0.5, "gauc_a": None, "pr_auc_a": 0.5, "log_loss_a": 0.4}
    alone = {"auc_b": None, "gauc_b": None, "pr_auc_b": None, "log_loss_b": 0.4}
    assert undefined(there | alone) == [
        "GAUC of a: not defined, because no value of dataset.group_by has samples of both classes",
        "AUC, GAUC, PR-AUC of b: not defined, because no evaluation sample is positive",
    ]
    assert undefined({"auc": 0.5, "pr_auc": 1.0}) == []
    unlabelled = dict.fromkeys(("auc", "pr_auc", "log_loss"))
    assert undefined(unlabelled) == [
        "AUC, PR-AUC, log loss: not defined, because no evaluation sample has the label, with a weight"
    ]


def test_a_model_that_is_worse_than_the_mean_label_is_reported() -> None:
    line = {"step": 40, "ne_a": 1.25, "ne_b": 0.99, "ne_c": 1.5}
    losses = {"c": {"kind": "bce", "pos_weight": 3}}
    run = make_run(dataset={"labels": ["a", "b", "c"], "sparse": ["x"]}, train={"batch_size": 32, "losses": losses})
    text = worse_than_the_mean(run, line)
    assert text is not None
    assert text.startswith("NE of a is 1.25 at step 40: ")
    assert "checkpoint.best_by=auc_minus_log_loss_a" in text
    text = worse_than_the_mean(run, line | {"ne_b": 1.5})
    assert text is not None
    assert text.startswith("NE of b is 1.5 at step 40, and above 1 for 1 more label: ")
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
    tables["item"] = {"reads": 300, "reads_known": 270, "reads of seen": 200, "reads_known of seen": 170}
    tables["item"] |= {"reads of item": 100, "reads_known of item": 100}
    text = "8.00% of the ids scored have no row and count as zeros (user 10.00%, seen 15.00%)"
    assert unknown([{"event": "tables", "tables": tables}]) == text
    assert unknown([WROTE]) == unknown([{"event": "tables", "tables": {"user": {"reads": 5, "reads_known": 5}}}]) == ""

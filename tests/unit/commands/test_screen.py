"""Small things of the screen: sizes, lines that fit, the result of a job with what was lost."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from persia_cli.commands.job_view import show_evaluation
from persia_cli.commands.screen import fitting, size
from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.jobs.result import lost_rows, undefined, unknown_ids, worse_than_the_mean
from persia_cli.plan.job import plan_job
from tests.support.runs import make_run


def test_sizes_in_units() -> None:
    sizes = [size(nbytes) for nbytes in (0, 999, 1000, 2**30 - 5, 2**50)]
    assert sizes == ["0 B", "999 B", "1.0 KiB", "1.0 GiB", "1024.0 TiB"]


def test_the_best_evaluation_is_named(tmp_path: Path) -> None:
    run = compose_run([])
    plan = plan_job(run, inspect(run.dataset), "train", tmp_path)
    figures = ("auc", "gauc", "pr_auc", "accuracy", "log_loss", "ne", "calibration")
    line = {f"{figure}_{label}": 0.25 for figure in figures for label in ("click", "buy")}
    best = {"best_by": "auc_buy", "step": 3000} | line
    terminal, pipe = io.StringIO(), io.StringIO()
    console = Console(file=terminal, force_terminal=True, color_system=None, width=140)
    show_evaluation(console, best, plan)
    head, *rows = terminal.getvalue().splitlines()
    assert head.split()[2:] == ["AUC", "GAUC", "PR-AUC", "accuracy", "log", "loss", "NE", "calibration"]
    names = [f"{label}  best by auc_buy, step 3,000" for label in ("click", "buy")]
    assert [row.split("  0.")[0].rstrip() for row in rows] == names
    assert [row.split()[-7:] for row in rows] == [["0.250000"] * 7] * 2
    show_evaluation(Console(file=pipe, width=40), best | {"time": 1.5}, plan)
    assert pipe.getvalue() == re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())


def test_a_line_drops_whole_fields() -> None:
    parts = ["step 100/5,000", "loss 0.1234", "19,200 samples/s", "1:02 left"]
    assert fitting(parts, 200) == "step 100/5,000  loss 0.1234  19,200 samples/s  1:02 left"
    assert fitting(parts, 30) == "step 100/5,000  loss 0.1234"
    assert fitting(parts, 5) == ""


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
    assert lost_rows([WROTE, early, {"event": "tables", "tables": tables}, WROTE]) == text


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
    assert text.startswith("NE of a is 1.25 at step 40: ")
    assert "checkpoint.best_by=log_loss_a" in text
    assert worse_than_the_mean(run, line | {"ne_a": None}) is None


def test_what_was_unknown() -> None:
    tables = {
        "user": {"reads": 100, "reads_known": 90},
        "item": {"reads": 300, "reads_known": 300},
        "shop": {"reads": 100, "reads_known": 100, "look_ups": 7},
        "(dense)": {"rows": 3},
    }
    text = "2.00% of the ids scored have no row and count as zeros (user 10.00%)"
    assert unknown_ids([WROTE, {"event": "tables", "tables": tables}]) == text
    assert (
        unknown_ids([WROTE])
        == unknown_ids([{"event": "tables", "tables": {"user": {"reads": 5, "reads_known": 5}}}])
        == ""
    )

"""Small things of the screen: sizes, counts, key=value settings, tables on a terminal."""

import io
from pathlib import Path

from rich.console import Console

from persia_cli.commands.results import show_evaluation
from persia_cli.commands.screen import fitting, key_values, size
from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.plan.job import plan_job


def test_sizes_in_units() -> None:
    sizes = [size(nbytes) for nbytes in (0, 999, 1000, 2**30 - 5, 2**50)]
    assert sizes == ["0 B", "999 B", "1.0 KiB", "1.0 GiB", "1024.0 TiB"]


def test_key_values_can_be_split_again() -> None:
    words = key_values({"a": 1, "b": 0.1 + 0.2, "c": None, "d": "x y", "e": "", "f": 'q"', "g": True, "h": "a/b"})
    assert words == 'a=1 b=0.30000000000000004 c=null d="x y" e="" f="q\\"" g=true h=a/b'


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
    assert [text.split()[0] for text in pipe.getvalue().splitlines()] == ["best_by=auc_buy"]


def test_a_line_drops_whole_fields() -> None:
    parts = ["step 100/5,000", "loss 0.1234", "19,200 samples/s", "1:02 left"]
    assert fitting(parts, 200) == "step 100/5,000  loss 0.1234  19,200 samples/s  1:02 left"
    assert fitting(parts, 30) == "step 100/5,000  loss 0.1234"
    assert fitting(parts, 5) == ""

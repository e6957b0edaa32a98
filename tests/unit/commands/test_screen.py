"""Small things of the screen: sizes, counts, key=value settings, tables on a terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from persia_cli.commands.results import show_evaluation
from persia_cli.commands.screen import fitting, key_values, size
from persia_cli.commands.screen_tables import columns, print_whole
from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.errors import count
from persia_cli.plan.job import plan_job


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (2**20, "1.0 MiB"), (2**30 - 5, "1.0 GiB"), (2**50, "1024.0 TiB")],
)
def test_sizes_in_units(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_counts() -> None:
    assert (count(1, "step"), count(12000, "step"), count(0, "row")) == ("1 step", "12,000 steps", "0 rows")


def test_key_values_can_be_split_again() -> None:
    words = key_values({"a": 1, "b": 0.1 + 0.2, "c": None, "d": "x y", "e": "", "f": 'q"', "g": True, "h": "a/b"})
    assert words == 'a=1 b=0.30000000000000004 c=null d="x y" e="" f="q\\"" g=true h=a/b'


@pytest.mark.parametrize(("conf", "title"), [("adult_income", "16,281"), ("criteo", "100,000")])
def test_the_evaluation_on_a_terminal(conf: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = compose_run([f"conf={conf}"])
    plan = plan_job(run, inspect(run.dataset), "train", tmp_path)
    stream = io.StringIO()
    line = {"step": 3, "split": "eval", "auc": 0.123456789, "log_loss": 0.5, "ne": None, "calibration": 1.0}
    show_evaluation(Console(file=stream, force_terminal=True, color_system=None, width=100), line, plan)
    head, row = stream.getvalue().splitlines()
    assert head.split("  ")[0] == f"{title} samples"
    assert row.split() == ["0.123457", "0.500000", "-", "1.000000"]
    assert head.partition("samples")[2].split() == ["AUC", "log", "loss", "NE", "calibration"]


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


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_table_is_never_cut_and_never_wrapped(width: int) -> None:
    table = columns("16,281 samples", "AUC", "PR-AUC", "accuracy", "log loss", "NE", "calibration")
    table.add_row("", *(f"0.{number}00000" for number in range(1, 7)))
    console = Console(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    print_whole(console, table)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [word for line in lines for word in line.split() if word.startswith("0.")] == [
        f"0.{number}00000" for number in range(1, 7)
    ]
    assert len(lines) == {40: 6, 60: 4}.get(width, 2)


def test_where_there_is_no_terminal_a_table_is_in_one_piece() -> None:
    table = columns("name", *(f"column {number}" for number in range(30)))
    table.add_row("x", *map(str, range(30)))
    console = Console(width=80, file=io.StringIO())
    print_whole(console, table)
    assert len(console.file.getvalue().splitlines()) == 2


def test_a_line_drops_whole_fields() -> None:
    parts = ["step 100/5,000", "loss 0.1234", "19,200 samples/s", "1:02 left"]
    assert fitting(parts, 200) == "step 100/5,000  loss 0.1234  19,200 samples/s  1:02 left"
    assert fitting(parts, 30) == "step 100/5,000  loss 0.1234"
    assert fitting(parts, 5) == ""

"""On terminals of every width nothing is cut inside a number or a word, and every metric has its heading."""

import io
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from persia_cli.commands.plan_view import describe_plan
from persia_cli.commands.progress import ProgressBar
from persia_cli.commands.recipe import as_markdown
from persia_cli.commands.runs_view import show_runs
from persia_cli.commands.screen import propose
from persia_cli.commands.sweep_view import show_table
from persia_cli.config.compose import compose_run
from persia_cli.data.prepare.recipe import list_recipes, load_recipe, readme_of
from persia_cli.data.read.facts import inspect
from persia_cli.observe.overview import Summary
from persia_cli.plan.job import plan_job
from persia_cli.sweeps.comparison import Mean, Row

WIDTHS = [40, 60, 80, 120]
WIDE = 400
Show = Callable[[Console], None]


def shown(show: Show, width: int) -> str:
    stream = io.StringIO()
    show(Console(file=stream, force_terminal=True, color_system=None, width=width, highlight=False))
    return stream.getvalue()


def last_line(text: str) -> str:
    """Return what stands in the last line, without what moves the cursor."""
    return [line for line in re.sub(r"\x1b\[[?0-9]*[a-zA-Z]|\r", "\n", text).splitlines() if line.strip()][-1].strip()


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"[^\s│─╭╮╰╯]+", text))


@pytest.fixture
def views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Show]:
    """Commands that show tables."""
    monkeypatch.chdir(tmp_path)
    mean = Mean(12345.6, 12.3, 3)
    rows = [
        Row((("optimizer.embedding.lr", "0.05"), ("mode", mode)), 3, 0, mean, {"auc": mean, "log_loss": mean},
            (100, 200), 12000, 3, 0.5, None if mode == "sync" else (("mode", "sync"),), mean)
        for mode in ("sync", "hybrid")
    ]  # fmt: skip
    runs = [
        Summary(f"runs/adult_income-20261121-08150{number}", "done", None, 1e9, 123.0, "ffnn", "hybrid", 255,
                {"click": 0.9, "buy": 0.8}, {"click": 0.3, "buy": 0.2}, 255, (100, 255))
        for number in range(2)
    ]  # fmt: skip
    run = compose_run(["conf=criteo", "mode=hybrid"])
    plan = plan_job(run, inspect(run.dataset), "train", tmp_path / "run")

    return {
        "sweep": lambda console: show_table(console, rows),
        "runs": lambda console: show_runs(console, runs),
        "dry run": lambda console: describe_plan(console, plan, ["conf=criteo"]),
    }


def test_every_word_and_number_is_whole(views: dict[str, Show]) -> None:
    for name, view in views.items():
        wanted = words(shown(view, WIDE))
        for width in WIDTHS:
            text = shown(view, width)
            assert not wanted - words(text), (name, width)
            for line in text.splitlines():
                assert len(line) <= width or len(line.split()) < 2 or line.startswith("  persia "), line


def test_a_file_gets_the_same_tables_as_a_terminal(views: dict[str, Show]) -> None:
    for name, view in views.items():
        stream = io.StringIO()
        view(Console(file=stream, width=40))
        lines = shown(view, WIDE).splitlines()
        assert [line.rstrip() for line in stream.getvalue().splitlines()] == [line.rstrip() for line in lines], name


def test_a_command_to_copy_is_one_line() -> None:
    command = "persia runs compare runs/adult_income-20261121-081500 runs/adult_income-20261121-091500"
    assert shown(lambda console: propose(console, command), 40) == f"next      {command}\n"


@pytest.mark.parametrize("width", WIDTHS)
def test_progress_shows_whole_numbers(width: int) -> None:
    parts = ["1,234,567/4,373,472,329 rows", "1:02:03 left", "a_file_of_some_length.parquet"]

    def move(console: Console) -> None:
        with ProgressBar(console, "reading") as bar:
            bar.show(1_234_567, 4_373_472_329, parts)

    last = last_line(shown(move, width))
    told = re.sub(r"^reading +|[━╸╺]+", "", last).strip()
    assert told in ("  ".join(parts[:number]) for number in (1, 2, 3))
    assert told == "  ".join(parts) or width < 120


@pytest.mark.parametrize("name", list_recipes())
def test_commands_in_a_readme_can_be_copied(name: str) -> None:
    text = readme_of(load_recipe(name).folder)
    lines = shown(lambda console: console.print(as_markdown(text), crop=False), 40).splitlines()
    commands = [line for block in re.findall(r"```\w*\n(.*?)```", text, re.S) for line in block.splitlines() if line]
    assert not {command.strip() for command in commands} - {line.strip() for line in lines}


def test_a_configuration_is_never_cropped(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    from persia_cli.commands import screen

    plain = persia("config", "show").out
    stream = io.StringIO()
    narrow = Console(file=stream, force_terminal=True, color_system=None, width=40)
    monkeypatch.setattr(screen, "out", lambda: narrow)
    assert persia("config", "show").code == 0
    assert stream.getvalue() == plain

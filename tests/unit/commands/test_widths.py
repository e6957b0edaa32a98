"""On terminals of every width nothing is cut inside a number or a word, and every metric has its heading."""

import io
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from persia_cli.bench.delay_line import NetworkLink
from persia_cli.bench.result import Hop, Result, Side, Stage
from persia_cli.bench.serving import ServingPlan, ServingSpeed
from persia_cli.commands import bench_views
from persia_cli.commands.describe import describe_plan
from persia_cli.commands.inspect_view import show_profile
from persia_cli.commands.progress_bar import ProgressBar
from persia_cli.commands.readme_view import Readme
from persia_cli.commands.runs_view import show_runs, show_side_by_side
from persia_cli.commands.screen import labelled, pairs, propose
from persia_cli.commands.screen_tables import columns, print_rows, print_whole
from persia_cli.commands.sweep_view import show_table
from persia_cli.config.compose import compose_run
from persia_cli.data.inspect.inspection import inspect_data
from persia_cli.data.prepare.recipe import list_recipes, load_recipe, readme_of
from persia_cli.data.read.facts import inspect
from persia_cli.observe.overview import Summary
from persia_cli.plan.capacity import table_needs
from persia_cli.plan.job import plan_job
from persia_cli.sweep.comparison import Mean, Row

WIDTHS = [40, 60, 80, 100, 120]
WIDE = 400
Show = Callable[[Console], None]

SIDES = [
    Side(
        "persia", 123456.7, 120000.0, 130000.0, {"torch": 1.48}, {"nn-worker-0": 1.25, "embedding-server-0": 0.5}, 0.1
    ),
    Side("torch", 83456.7, 80000.0, 90000.0, cpu_ms={"process": 3.25}),
]
STAGES = [
    Stage("nn-worker-0", "forward and backward", 1.5, aside=False),
    Stage("data-loader-0", "read", 0.5, aside=True),
]


def shown(show: Show, width: int, terminal: bool = True) -> str:
    stream = io.StringIO()
    show(Console(file=stream, force_terminal=terminal, color_system=None, width=width, highlight=False))
    return stream.getvalue()


def last_line(text: str) -> str:
    """Return what stands in the last line, without what moves the cursor."""
    return [line for line in re.sub(r"\x1b\[[?0-9]*[a-zA-Z]|\r", "\n", text).splitlines() if line.strip()][-1].strip()


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"[^\s│─╭╮╰╯]+", text))


@pytest.fixture
def views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Show]:
    """Commands that show tables, or text in two columns."""
    monkeypatch.chdir(tmp_path)
    row = np.arange(4000)
    data = {
        "bought": row % 4 == 0,
        "price_in_cents": row / 7.0,
        "item": row % 100,
        "last_items": pa.array([list(range(number % 90)) for number in row.tolist()]),
        "name": pa.array([f"a rather long name {number % 3}" for number in row.tolist()]),
    }
    pq.write_table(pa.table(data), "shop.parquet")
    profile = inspect_data("shop.parquet", lambda done, total: None)
    needs = table_needs(profile.table_rows, 16, "adagrad", 2**30)
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
    figures = [
        Side(mode, 12345.6, 1.0, 2.0, {"no delay": 0.9, "sync": 1.25}, staleness=2.5, auc=0.8, auc_spread=0.001)
        for mode in ("sync", "hybrid")
    ]
    modes = {NetworkLink(5.0): Result("5 ms", "shop", "samples/s", figures, 3, 400)}
    sides = [Side("persia", 2e7, 1e7, 3e7, {"fbgemm": 1.25}, {"embedding-server-0": 1.5}), Side("fbgemm", 1.6e7, 1, 2)]
    tier = Result("tier", "shop", "ids/s", sides, 5, 400, stages=STAGES)
    hops = [Hop("embedding worker to NN worker", 512.0)]
    compared = Result("ring", "shop", "samples/s", SIDES, 5, 48, stages=STAGES, hops=hops, bottleneck="the network")

    loaded = Side("persia", 98765.4, 1, 2, {"network alone": 0.812}, requests_per_s=987.7, busy=12, errors=3)
    loaded = replace(loaded, offered_per_s=1234.5, latency_ms={"p50": 3.25, "p99": 7.5, "p999": 11.75})
    requests = "binary, of 256 golden samples; 19 of 39 fields have one row for all candidates"
    load = Result("one after another", "4 connections, 100 candidates", "candidates/s", [loaded, SIDES[1]], 3)
    serving = ServingSpeed("shop, ffnn, 26 features, 13 dense", requests, [load], (130_000_000, 131_000_000))

    def bench(show: Callable[[], None]) -> Show:
        def through(console: Console) -> None:
            monkeypatch.setattr(bench_views, "out", lambda: console)
            show()

        return through

    return {
        "inspect": lambda console: show_profile(console, profile, needs),
        "sweep": lambda console: show_table(console, rows),
        "runs": lambda console: show_runs(console, runs),
        "compare": lambda console: show_side_by_side(
            console, [Path(each.run_dir) for each in runs], {"model.dim": ["8", "16"]}, {"AUC": ["0.9", "0.8"]}
        ),
        "dry run": lambda console: describe_plan(console, plan, ["conf=criteo"]),
        "bench compare": bench(lambda: bench_views.show_comparison(run, compared)),
        "bench modes": bench(lambda: bench_views.show_modes(run, modes)),
        "bench serve": bench(lambda: bench_views.show_serving(ServingPlan(Path("shop")), serving)),
        "bench tier": bench(lambda: bench_views.show_tier(run, tier)),
        "recipes": lambda console: pairs(console, {name: load_recipe(name).title for name in list_recipes()}),
    }


NAMES = [
    "inspect",
    "sweep",
    "runs",
    "compare",
    "dry run",
    "bench compare",
    "bench modes",
    "bench serve",
    "bench tier",
    "recipes",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_word_and_number_is_whole(views: dict[str, Show], name: str, width: int) -> None:
    text = shown(views[name], width)
    assert not words(shown(views[name], WIDE)) - words(text)
    suggestion = text[text.find("# Suggested") :].splitlines() if name == "inspect" else []
    for line in text.splitlines():
        is_to_be_copied = line in suggestion or line.startswith("  persia ")
        assert len(line) <= width or len(line.split()) < 2 or is_to_be_copied, line


@pytest.mark.parametrize("width", WIDTHS)
def test_a_column_without_a_heading_stays_next_to_the_one_before_it(width: int) -> None:
    table = columns("column", "most frequent", "", "filled", "", "figures")
    figures = "0 … 1,234,567, mean 123,456.7"
    table.add_row("a_feature", "a long name of a thing, too", "12.5%", "100%", "of all", figures)
    lines = shown(lambda console: print_whole(console, table), width).splitlines()
    if width == 40:  # no two columns fit: a list
        assert lines == [
            "column  a_feature", "  most frequent  a long name of a thing,", "                 too 12.5%",
            "  filled         100% of all", "  figures        0 … 1,234,567, mean", "                 123,456.7",
        ]  # fmt: skip
        return
    for head, row in zip(lines[::2], lines[1::2], strict=True):
        assert (head.split()[0], row.split()[0]) == ("column", "a_feature")
        assert ("most frequent" in head, "filled" in head) == ("12.5%" in row, "of all" in row)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_command_to_copy_is_one_line(width: int) -> None:
    command = "persia runs compare runs/adult_income-20261121-081500 runs/adult_income-20261121-091500"
    assert shown(lambda console: propose(console, command), width) == f"next      {command}\n"


@pytest.mark.parametrize("width", WIDTHS)
def test_labelled_lines_break_between_words(width: int) -> None:
    text = "123,456 training and 654,321 evaluation rows: the last fifth, by its column a-b-c"
    lines = shown(lambda console: labelled(console, "splits", text), width).splitlines()
    assert [line[:10] for line in lines] == ["splits    ", *[" " * 10] * (len(lines) - 1)]
    assert " ".join(line[10:].strip() for line in lines) == text
    assert max(map(len, lines)) <= width


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


def test_progress_without_space_for_a_number_shows_the_phase_alone() -> None:
    def move(console: Console) -> None:
        with ProgressBar(console, "reading") as bar:
            bar.show(1, 2, ["a number that is much longer than the line"])

    assert last_line(shown(move, 40)) == "reading"


def test_rows_are_plain_lines_where_there_is_no_terminal() -> None:
    table = columns("who", "samples/s", "ours is", "target", "", "others' cores")
    table.add_row("torch", "1,234,567", "1.480 x", ">= 1.1", "met", "0.0")
    assert shown(lambda console: print_rows(console, table), 40, terminal=False) == (
        'who=torch samples_s=1234567 ours_is="1.480 x" target=">= 1.1 met" others_cores=0.0\n'
    )


@pytest.mark.parametrize("name", list_recipes())
def test_commands_in_a_readme_can_be_copied(name: str) -> None:
    text = readme_of(load_recipe(name).folder)
    lines = shown(lambda console: console.print(Readme(text), crop=False), 40).splitlines()
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

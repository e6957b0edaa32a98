"""`persia table stats` shows the statistics of a checkpoint's tables, to people and to programs."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from persia_cli.commands.table_view import show_tables
from persia_cli.observe.table_report import report_tables
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_run

STEP = 40
ROWS = made_up_rows(300, 8, STEP, ("a", "b"))
OF_A = int((ROWS["table"] == "a").sum())
CAPACITY = 4096
RUN = make_run(embedding={"capacity": CAPACITY})
COUNTERS = {
    "a": {
        "rows": OF_A,
        "bytes": 32 * OF_A,
        "hits": 900,
        "misses": 300,
        "evicted": 7,
        "refused": 2,
        "look_ups": 4000,
        "look_ups_known": 3600,
    },
    "b": {"rows": 300 - OF_A, "bytes": 0, "hits": 0, "misses": 0, "evicted": 0, "refused": 0},
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that has ended."""
    write_run(tmp_path / "run", RUN, STEP, [ROWS], COUNTERS)
    return tmp_path / "run"


def test_json_has_everything(persia, run_dir: Path) -> None:
    ended = persia("table", "stats", str(run_dir), "--json")
    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert (told["checkpoint"], told["step"]) == (str(run_dir / "checkpoints" / f"step-{STEP}"), STEP)
    table = told["tables"]["a"]
    assert (table["rows"], table["row_bytes"], table["bytes"]) == (OF_A, 32, 32 * OF_A)
    assert (table["room_tables"], table["room_capacity"], table["room_fraction"]) == (2, CAPACITY, OF_A / CAPACITY)
    assert (table["hit_rate"], table["look_up_hit_rate"], table["counters"]) == (0.75, 0.9, COUNTERS["a"])
    assert sum(table["norms"]["counts"]) + table["zeros"] == sum(table["ages"]["counts"]) == OF_A
    assert len(table["norms"]["edges"]) == len(table["norms"]["counts"]) + 1
    assert told["tables"]["b"]["hit_rate"] is None


def test_a_checkpoint_that_lies_alone_has_no_counters(persia, run_dir: Path, tmp_path: Path) -> None:
    alone = (run_dir / "checkpoints" / f"step-{STEP}").rename(tmp_path / "alone")
    ended = persia("table", "stats", str(alone))
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[1].split()[-4:] == ["-"] * 4, "hit rates, and rows evicted and refused"
    assert ended.err.splitlines()[1:] == [
        "note      no hit rates: they are in the record of a finished run, which is not here",
    ]


def test_a_folder_of_something_else_is_refused(persia, run_dir: Path, tmp_path: Path) -> None:
    for folder in (tmp_path / "nothing", tmp_path):
        ended = persia("table", "stats", str(folder))
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"error: {folder} is neither a run directory nor a checkpoint: it has no ")
        assert len(ended.err.splitlines()) == 1
    (run_dir / "checkpoints" / f"step-{STEP}" / "manifest.json").unlink()
    ended = persia("table", "stats", str(run_dir))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {run_dir} has no complete checkpoint")


def test_statistics_and_pictures_on_a_terminal(run_dir: Path) -> None:
    stream = io.StringIO()
    show_tables(Console(file=stream, force_terminal=True, color_system=None, width=100), report_tables(run_dir))
    lines = stream.getvalue().splitlines()
    assert lines[0].split("  ")[0] == "table"
    assert lines[1].split()[:2] == ["a", str(OF_A)]
    assert lines[1].split()[-4:] == ["75.0%", "90.0%", "7", "2"]
    assert lines[-1] == f"of capacity: a, b share a capacity of {CAPACITY:,} rows"
    assert lines[6].split()[-2:] == [str(int((ROWS["embedding"][ROWS["table"] == "a"].map(max) == 0).sum())), "zero"]

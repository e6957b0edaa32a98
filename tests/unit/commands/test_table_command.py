"""`persia table stats` shows the statistics of a checkpoint's tables, to people and to programs."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from persia_cli.commands.table_view import bars, show_tables
from persia_cli.observe.table_report import report_tables
from persia_cli.storage.checked_json import read_checked
from persia_cli.store.checkpoints.manifest import write_checked
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


def figures(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split())


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


def test_lines_of_text_without_a_terminal(persia, run_dir: Path) -> None:
    ended = persia("table", "stats", str(run_dir))
    assert ended.code == 0, ended.err
    one, other = map(figures, ended.out.splitlines())
    assert (one["table"], other["table"]) == ("a", "b")
    assert (one["rows"], one["row_bytes"], one["hit_rate"], one["evicted"]) == (str(OF_A), "32", "0.75", "7")
    assert sum(map(int, one["age_counts"].split(","))) == OF_A
    assert (one["age_from"], one["age_to"]) == ("1", str(STEP + 1))
    assert ended.err.splitlines() == [
        f"read      {run_dir}/checkpoints/step-{STEP}, saved after {STEP} steps",
        f"next      persia eval {run_dir}",
    ]


def test_a_checkpoint_of_a_run_is_taken_by_itself(persia, run_dir: Path) -> None:
    ended = persia("table", "stats", str(run_dir / "checkpoints" / f"step-{STEP}"), "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["tables"] == json.loads(persia("table", "stats", str(run_dir), "--json").out)["tables"]


def test_a_checkpoint_that_lies_alone_has_no_counters(persia, run_dir: Path, tmp_path: Path) -> None:
    alone = (run_dir / "checkpoints" / f"step-{STEP}").rename(tmp_path / "alone")
    ended = persia("table", "stats", str(alone))
    assert ended.code == 0, ended.err
    assert figures(ended.out.splitlines()[0])["hit_rate"] == "null"
    assert ended.err.splitlines()[1:] == [
        "note      no hit rates: they are in the record of a finished run, which is not here",
        f"next      persia table stats {alone} --json",
    ]


def test_a_config_of_another_version_hides_only_what_it_tells(persia, run_dir: Path) -> None:
    path = run_dir / "checkpoints" / f"step-{STEP}" / "manifest.json"
    write_checked(path, json.loads(read_checked(path)) | {"config": {"name": "of old"}})
    ended = persia("table", "stats", str(run_dir), "--json")
    assert ended.code == 0, ended.err
    table = json.loads(ended.out)["tables"]["a"]
    assert (table["rows"], table["hit_rate"]) == (OF_A, 0.75)
    assert (table["bytes"], table["room_capacity"], table["room_fraction"]) == (None, None, None)


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
    assert lines[3].split()[:2] == ["all", "300"]
    assert "█" in lines[6]
    assert lines[-1] == f"of capacity: a, b share a capacity of {CAPACITY:,} rows"
    assert lines[6].split()[-2:] == [str(int((ROWS["embedding"][ROWS["table"] == "a"].map(max) == 0).sum())), "zero"]


def test_no_digit_is_cut_off_on_a_narrow_terminal(run_dir: Path) -> None:
    stream = io.StringIO()
    show_tables(Console(file=stream, force_terminal=True, color_system=None, width=20), report_tables(run_dir))
    assert "…" not in stream.getvalue()
    assert "75.0%" in stream.getvalue()


def test_bars_are_as_high_as_their_counts() -> None:
    assert bars((0, 1, 500, 1000)) == " ▁▄█"
    assert bars(()) == ""
    assert bars((0, 0)) == "  "

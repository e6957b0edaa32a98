"""`persia sweep` before anything is trained: points, mistakes, resuming; and how results are shown."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from persia_cli.commands.sweep_view import as_object, show_table
from persia_cli.observe.outcome import JobMetrics
from persia_cli.sweeps.comparison import Row, compare
from persia_cli.sweeps.points import Setting

SMALL = ("dataset=tiny", "cluster=embedded", "train.batch_size=100")
SYNC: Setting = (("mode", "sync"),)
HYBRID: Setting = (("mode", "hybrid"), ("mode.staleness", "3"))


def test_the_points_are_listed_and_nothing_is_made(persia, tmp_path: Path) -> None:
    ended = persia("sweep", *SMALL, "mode=sync,hybrid", "mode.staleness=8", "seed=1,2", "--dry-run", "--folder", "s")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert len(lines) == 4
    conf = f"--conf-dir {tmp_path / 'conf'}"
    words = "checkpoint.at_end=false checkpoint.every_minutes=null dataset=tiny cluster=embedded train.batch_size=100"
    assert lines[0] == f"persia train {words} mode=sync seed=1 {conf} --run-dir s/points/001-sync-1"
    assert (
        lines[3] == f"persia train {words} mode=hybrid mode.staleness=8 seed=2 {conf} --run-dir s/points/004-hybrid-2"
    )
    assert ended.err == "points    4 points, 2 settings\n"
    assert not Path("s").exists()


def test_a_search_is_described_and_nothing_is_made(persia) -> None:
    words = ["optimizer.dense.lr=tag(log,interval(1e-4,1e-1))", "model.dim=4,8", "train.batch_size=interval(50,100)"]
    asked = ["--search", "tpe", "--trials", "9", "--repeat", "3x2", "--dry-run"]
    ended = persia("sweep", "dataset=tiny", "cluster=embedded", *words, *asked)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "optimizer.dense.lr: from 0.0001 to 0.1, on a logarithmic scale",
        "model.dim: one of 4, 8",
        "train.batch_size: whole numbers from 50 to 100",
    ]
    assert ended.err.startswith("points    the defaults and 9 trials by tpe for auc")
    assert ended.err.endswith(", then the best 3 and the defaults on 2 other seeds\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mode=sync,hybrd"], "did you mean hybrid? (point mode=hybrd)"),
        (["dataset=tiny,parquet", "dataset.split={kind: every, n: 2}", "dataset.path=no", "dataset.labels=[y]"],
         "(point dataset=parquet)"),
        (["mode=sync,hybrid", "--baseline", "mode=async"], "--baseline 'mode=async' is not a point of this sweep"),
        (["seed=1,2", "--folder", "conf"], "conf exists already; name another folder"),
        (["--resume", "nowhere"], "nowhere does not contain a sweep: nowhere/sweep.json is missing"),
        (["seed=1,2", "--metric", "auk"], "; did you mean auc?"),
        (["seed=1", "--resume", "nowhere"], "--resume takes settings and folder from the sweep itself"),
        (["model.dim=interval(4,8)"], "to draw from an interval, add --search tpe"),
        (["model.dim=4,8", "--trials", "3"], "--trials is for a search; add --search tpe"),
        (["model.dim=4,8", "--search", "tpe", "--repeat", "2x3"], "at least the best 3 of 20 trials"),
        (["model.dim=4,8", "--search", "tpe", "--repeat", "3"], "such as 3x5"),
        (["model.dim=4,8", "--search", "tpe", "--prune", "train.epochs=1"], "lower eval.every_steps"),
        (["model.dim=4,8", "--search", "tpe", "--folds"], "--folds is for every combination of values"),
        (["--folds"], "--folds needs a split by row number"),
    ],
)  # fmt: skip
def test_mistakes_end_it_before_the_first_point(persia, words: list[str], sentence: str) -> None:
    ended = persia("sweep", *([] if "--resume" in words else SMALL[1:]), *words)
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err
    assert not Path("sweeps").exists()


def made(rate: float, auc: float, log_loss: float | None, staleness: int) -> JobMetrics:
    return JobMetrics(rate, {"auc": auc, "log_loss": log_loss}, 30, 40, staleness)


def rows() -> list[Row]:
    figures = {
        SYNC: {"1": made(1000.0, 0.70, 0.5, 1), "2": made(1100.0, 0.72, 0.5, 1)},
        HYBRID: {"1": made(3000.0, 0.69, 0.5, 3), "2": made(3100.0, 0.715, None, 3)},
    }
    return compare(figures, {HYBRID: 1}, {SYNC: SYNC, HYBRID: SYNC}, ["auc", "log_loss"])


def test_a_terminal_sees_a_table() -> None:
    text = io.StringIO()
    show_table(Console(file=text, force_terminal=True, width=200, no_color=True, highlight=False), rows())
    header, first, second = [line.rstrip() for line in text.getvalue().replace("\x1b[1m", "").splitlines()]
    assert "seeds" in header
    assert "AUC to baseline" in header
    assert "1,050 ± 635" in first
    assert "0.71000 ± 0.12706" in first
    assert "1 failed" in second
    assert "-0.00750 ± 0.03177" in second
    assert second.endswith("no")


def test_a_row_of_a_file_has_every_number() -> None:
    first, second = (as_object(row, flat=True) for row in rows())
    assert list(first.items())[:4] == [("mode", "sync"), ("finished", 2), ("failed", 0), ("samples_per_s", 1050.0)]
    assert [second[key] for key in ("mode.staleness", "failed", "log_loss", "log_loss_se")] == ["3", 1, 0.5, None]
    assert second["auc_difference"] == pytest.approx(-0.0075)
    assert second["auc_difference_low"] == pytest.approx(-0.0075 - 12.7062 * 0.0025, rel=1e-5)
    assert (second["differs"], second["judged_steps"]) == (False, "30")

"""`persia sweep` before anything is trained: points, mistakes, resuming; and how results are shown."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from persia_cli.commands.sweep_view import Shown, as_object, legend, show_table, spread
from persia_cli.observe.comparison import Mean, Row, compare
from persia_cli.observe.outcome import Figures
from persia_cli.plan.grid import Setting

SMALL = ("dataset=tiny", "cluster=embedded", "train.batch_size=100")
SYNC: Setting = (("mode", "sync"),)
HYBRID: Setting = (("mode", "hybrid"), ("mode.staleness", "3"))


def test_the_points_are_listed_and_nothing_is_made(persia, tmp_path: Path) -> None:
    ended = persia("sweep", *SMALL, "mode=sync,hybrid", "mode.staleness=8", "seed=1,2", "--dry-run", "--folder", "s")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert len(lines) == 4
    conf = f"--conf-dir {tmp_path / 'conf'}"
    words = "checkpoint.at_end=false dataset=tiny cluster=embedded train.batch_size=100"
    assert lines[0] == f"persia train {words} mode=sync seed=1 {conf} --run-dir s/points/001-sync-1"
    assert (
        lines[3] == f"persia train {words} mode=hybrid mode.staleness=8 seed=2 {conf} --run-dir s/points/004-hybrid-2"
    )
    assert ended.err == "points    4 points, 2 settings\n"
    assert not Path("s").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mode.staleness=0,1"], "mode.staleness=0: staleness counts the step in flight itself"),
        (["mode=sync,hybrd"], "did you mean hybrid? (point mode=hybrd)"),
        (["dataset=tiny,parquet", "dataset.split={kind: every, n: 2}", "dataset.path=no", "dataset.labels=[y]"],
         "(point dataset=parquet)"),
        (["mode=sync,hybrid", "--baseline", "mode=async"], "--baseline 'mode=async' is no point of this sweep"),
        (["seed=1,2", "--folder", "conf"], "conf exists already; name a folder that does not"),
        (["--resume", "nowhere"], "nowhere holds no sweep: there is no nowhere/sweep.json"),
        (["seed=1", "--resume", "nowhere"], "--resume takes words and folder from the sweep itself"),
    ],
)  # fmt: skip
def test_mistakes_end_it_before_the_first_point(persia, words: list[str], sentence: str) -> None:
    ended = persia("sweep", *([] if "--resume" in words else SMALL[1:]), *words)
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err
    assert not Path("sweeps").exists()


def rows() -> list[Row]:
    figures = {
        SYNC: {"1": Figures(1000.0, 0.70, 0.5, 40, 1), "2": Figures(1100.0, 0.72, 0.5, 40, 1)},
        HYBRID: {"1": Figures(3000.0, 0.69, 0.5, 40, 3), "2": Figures(3100.0, 0.715, None, 40, 3)},
    }
    return compare(figures, {HYBRID: 1}, {SYNC: SYNC, HYBRID: SYNC})


def test_a_terminal_sees_a_table() -> None:
    text = io.StringIO()
    show_table(Console(file=text, force_terminal=True, width=200, no_color=True, highlight=False), rows())
    header, first, second = [line.rstrip() for line in text.getvalue().replace("\x1b[1m", "").splitlines()]
    assert "seeds" in header
    assert "AUC to baseline" in header
    assert "1,050 ± 50" in first
    assert "0.71000 ± 0.01000" in first
    assert "baseline" in first
    assert "1 failed" in second
    assert "3 (7.50%)" in second
    assert "-0.00750 ± 0.00250" in second
    assert "0.01250" in second


def test_a_narrow_terminal_cuts_no_figure_off() -> None:
    text = io.StringIO()
    show_table(Console(file=text, force_terminal=True, width=60, no_color=True, highlight=False), rows())
    assert len(text.getvalue().splitlines()) == 3
    assert "-0.00750 ± 0.00250" in text.getvalue()
    assert "…" not in text.getvalue()


def test_elsewhere_each_setting_is_a_line_of_figures() -> None:
    text = io.StringIO()
    show_table(Console(file=text, width=40), rows())
    first, second = text.getvalue().splitlines()
    assert first.startswith("mode=sync finished=2 failed=0 samples_per_s=1050.0")
    told = dict(word.split("=", 1) for word in second.split())
    assert (told["mode.staleness"], told["failed"], told["log_loss"], told["log_loss_se"]) == ("3", "1", "0.5", "null")
    assert float(told["auc_difference"]) == pytest.approx(-0.0075)
    assert float(told["auc_difference_bound"]) == pytest.approx(0.0125)


def test_json_keeps_settings_apart_from_figures() -> None:
    told = as_object(rows()[1])
    assert told["setting"] == {"mode": "hybrid", "mode.staleness": "3"}
    assert told["samples_per_s"] == {"mean": 3050.0, "standard_error": pytest.approx(50.0), "count": 2}
    assert told["baseline"] == {"mode": "sync"}


def test_figures_in_words() -> None:
    assert spread(None, ".3f") == "-"
    assert spread(Mean(0.5, None, 1), "+.3f") == "+0.500"
    assert spread(Mean(-0.5, 0.01, 3), "+.3f") == "-0.500 ± 0.010"
    assert "differences to mode=sync" in legend("mode=sync")
    assert "differences" not in legend(None)


def test_the_time_left_is_unknown_before_the_first_point() -> None:
    shown = Shown(4, 2)
    assert shown.left_s() is None
    shown.done = 4
    assert shown.left_s() == 0.0

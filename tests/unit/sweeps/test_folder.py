"""The content of the folder of a sweep."""

import csv
import json
from pathlib import Path

import pytest

from persia_cli.commands.sweep_view import as_object
from persia_cli.errors import UserError
from persia_cli.observe.outcome import JobMetrics
from persia_cli.sweeps.comparison import compare
from persia_cli.sweeps.folder import (
    PointOutcome,
    SweepRequest,
    claimed,
    digest,
    read_results,
    write_results,
    write_settings,
)
from persia_cli.sweeps.points import Point
from tests.support.runs import make_run

ASK = SweepRequest(("conf=synthetic", "seed=1,2"), ("/conf",), "mode=sync", "pr_auc", "/somewhere")
POINT = Point(("seed=1", "mode=hybrid"), (("mode", "hybrid"), ("seed", "1")))
DONE = PointOutcome(
    POINT, "1", "points/001-hybrid-1", 12.5, JobMetrics(1000.0, {"auc": 0.75, "log_loss": None}, 30, 40, 3), None
)
FAILED = PointOutcome(Point(("seed=2",), (("seed", "2"),)), "2", "points/002-2", 1.0, None, "nn-worker-0 died, alas")


def test_a_request_is_read_as_written(tmp_path: Path) -> None:
    runs = [make_run(), make_run(seed=3)]
    ASK.write(tmp_path / "new" / "sweep", runs)
    assert SweepRequest.read(tmp_path / "new" / "sweep") == (ASK, [digest(run) for run in runs])
    assert digest(runs[0]) != digest(runs[1])
    with pytest.raises(UserError, match=r"new/sweep exists already; name a folder that does not"):
        ASK.write(tmp_path / "new" / "sweep", runs)
    assert ASK.write(tmp_path / "new" / "sweep", runs, numbered=True) == tmp_path / "new" / "sweep-2"


def test_results_can_be_read_again_and_opened_as_a_table(tmp_path: Path) -> None:
    assert read_results(tmp_path) == []
    write_results(tmp_path, [DONE])
    write_results(tmp_path, [DONE, FAILED])
    assert read_results(tmp_path) == [DONE, FAILED]
    with (tmp_path / "results.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["mode"], first["seed"], first["state"], first["auc"]) == ("hybrid", "1", "done", "0.75")
    assert (first["staleness_fraction"], first["log_loss"], first["judged_step"]) == ("0.075", "", "30")
    assert (second["mode"], second["state"], second["error"]) == ("", "failed", "nn-worker-0 died, alas")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.csv", "results.json"]


def test_settings_have_their_intervals_as_json_and_as_a_table(tmp_path: Path) -> None:
    setting = (("mode", "hybrid"),)
    by_seed = {str(seed): JobMetrics(1000.0, {"auc": auc}, 30, 40, 3) for seed, auc in enumerate((0.70, 0.74, 0.75))}
    rows = compare({setting: by_seed}, {}, {}, ["auc"])
    write_settings(tmp_path, [as_object(row) for row in rows], [as_object(row, flat=True) for row in rows])
    [told] = json.loads((tmp_path / "settings.json").read_text())
    with (tmp_path / "settings.csv").open(newline="") as file:
        [line] = csv.DictReader(file)
    assert told["setting"] == {"mode": "hybrid"}
    # Student's t of two degrees of freedom, 4.302653, times the sample deviation over the root of three.
    margin = 4.302653 * 0.0264575 / 3**0.5
    for low, high in [(told["auc"]["low"], told["auc"]["high"]), (float(line["auc_low"]), float(line["auc_high"]))]:
        assert (low, high) == pytest.approx((0.73 - margin, 0.73 + margin), abs=1e-6)


@pytest.mark.parametrize("text", ["", "[1]", '[{"arguments": []}]'])
def test_damaged_results_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(UserError, match=r"results\.json cannot be read .*; start a new sweep"):
        read_results(tmp_path)


def test_a_sweep_whose_values_have_other_types_is_refused(tmp_path: Path) -> None:
    """As those of another version, which must not end the page over all sweeps."""
    write_results(tmp_path, [DONE])
    [values] = json.loads((tmp_path / "results.json").read_text())
    for key in values.keys() - {"arguments", "error"}:
        (tmp_path / "results.json").write_text(json.dumps([values | {key: [1]}]))
        with pytest.raises(UserError):
            read_results(tmp_path)


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not contain a sweep: "):
        SweepRequest.read(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps({"arguments": 1}))
    with pytest.raises(UserError, match=r"sweep\.json cannot be read"):
        SweepRequest.read(tmp_path)


def test_only_one_process_at_a_time_trains_the_points(tmp_path: Path) -> None:
    ASK.write(tmp_path / "sweep", [make_run()])
    again = pytest.raises(UserError, match="another process is training the points of")
    with claimed(tmp_path / "sweep"), again, claimed(tmp_path / "sweep"):
        pass
    with claimed(tmp_path / "sweep"):
        pass

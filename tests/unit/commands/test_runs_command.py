"""`persia runs` lists the results of runs and the settings in which they differ."""

import io
import json
import re
import socket
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from persia_cli.commands.runs_view import show_runs
from persia_cli.config.record import write_run
from persia_cli.observe.history import read_history
from persia_cli.observe.journal import EVENTS, METRICS, Journal
from persia_cli.observe.overview import summaries, summarize
from tests.support.made_up_run import made_up_run
from tests.support.runs import make_run

NOW = 4e9
"""Long after the records were written."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs that ended in every way, what is no run, and a run whose configuration is damaged."""
    made_up_run(tmp_path / "good", 20, phase="done")
    made_up_run(tmp_path / "bad", 3, phase="failed", error="the disk is full", exit_code=2)
    made_up_run(tmp_path / "two", 20, ("click", "buy"), phase="done")
    made_up_run(tmp_path / "dead", 2)
    made_up_run(tmp_path / "unborn", 0)
    (tmp_path / "notes").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.yaml").write_text("name: [")
    return tmp_path


def test_every_run_has_a_line_whatever_became_of_it(folder: Path) -> None:
    found = {Path(each.run_dir).name: each for each in summaries(folder, NOW)}
    states = {name: each.state for name, each in found.items()}
    ended, silent = {"good": "done", "bad": "failed", "two": "done"}, {"dead": "silent", "unborn": "silent"}
    assert states == ended | silent | {"torn": "damaged"}
    good = read_history(folder / "good")
    best = max(good.evaluations, key=lambda line: line["auc"])
    assert (found["good"].auc, found["good"].judged_step) == ({"click": best["auc"]}, best["step"])
    assert list(found["two"].auc) == ["click", "buy"]
    assert found["bad"].note == "the disk is full"
    assert (found["unborn"].step, found["unborn"].auc, found["unborn"].began_s) == (None, None, None)


def test_the_runs_of_a_sweep_are_its_points(tmp_path: Path) -> None:
    made_up_run(tmp_path / "points" / "001-8", 20, phase="done")
    (tmp_path / "sweep.json").write_text("{}")
    assert [Path(each.run_dir).name for each in summaries(tmp_path, NOW)] == ["001-8"]


@pytest.mark.parametrize(("chosen", "judged"), [(None, 20), (30, 30)])
def test_a_run_is_judged_by_the_evaluation_it_chose_else_by_its_best(tmp_path: Path, chosen, judged) -> None:
    """The model got worse after step 20 and trained on without an evaluation to step 40."""
    (tmp_path / "a").mkdir()
    write_run(make_run(), tmp_path / "a" / "config.yaml")
    aucs = {10: 0.6, 20: 0.8, 30: 0.7}
    with closing(Journal(tmp_path / "a" / METRICS)) as metrics, closing(Journal(tmp_path / "a" / EVENTS)) as events:
        for step, auc in aucs.items():
            metrics.write(step=step, samples=step, split="train", loss=0.5, auc=0.5)
            metrics.write(step=step, samples=step, split="eval", loss=0.4, auc=auc, log_loss=1.0 - auc)
        metrics.write(step=40, samples=40, split="train", loss=0.5, auc=0.5)
        if chosen:
            events.write(event="best", step=chosen, metric="log_loss", value=0.3)
    found = summarize(tmp_path / "a", NOW)
    assert (found.step, found.judged_step, found.auc) == (40, judged, {"click": aucs[judged]})
    assert found.log_loss == {"click": 1.0 - aucs[judged]}


def test_a_run_whose_processes_were_killed_is_dead_at_once(folder: Path) -> None:
    """The claim of a coordinator on its record ends with the process, however that ends."""

    def state_of(name: str, host: str) -> str:
        path = folder / name / EVENTS
        with closing(Journal(path)) as events:
            events.write(event="began", host=host, pid=1)
        return summarize(folder / name, json.loads(path.read_text().splitlines()[-1])["time"]).state

    assert state_of("unborn", "another") == "running"  # whose locks may not be seen here
    assert state_of("dead", socket.gethostname()) == "dead"
    with closing(Journal(folder / "dead" / EVENTS, alone=True)):
        assert state_of("dead", socket.gethostname()) == "running"
    assert state_of("good", socket.gethostname()) == "done"


def test_a_file_gets_a_table_too(persia, folder: Path) -> None:
    ended = persia("runs", "ls", str(folder))
    assert ended.code == 0, ended.err
    [line] = [line for line in ended.out.splitlines() if line.startswith(f"{folder}/two ")]
    assert re.search(r" 0\.\d{4} / 0\.\d{4} ", line), "AUC of each label"
    assert f"next      persia runs compare {folder}/" in ended.err
    assert persia("runs", "ls", str(folder / "nowhere")).code == 2


def test_compare_shows_settings_and_metrics(persia, folder: Path) -> None:
    ended = persia("runs", "compare", str(folder / "good"), str(folder / "two"))
    assert ended.code == 0, ended.err
    lines = {line.split("  ")[0]: line for line in ended.out.splitlines()}
    assert '["click"]' in lines["dataset.labels"]
    assert "AUC" in lines
    assert persia("runs", "compare", str(folder / "good")).code == 2


def test_a_run_that_outlived_a_death_is_marked(persia, folder: Path) -> None:
    with closing(Journal(folder / "good" / EVENTS)) as events:
        events.write(event="recovered", replica="data-loader-0", repeated={"steps": 3}, lost=0, seconds=1.5)
    listed = json.loads(persia("runs", "ls", str(folder), "--json").out)["runs"]
    assert {Path(each["run_dir"]).name: each["recoveries"] for each in listed if each["recoveries"]} == {"good": 1}
    compared = persia("runs", "compare", str(folder / "good"), str(folder / "two")).out
    assert ["recoveries", "1", "-"] in map(str.split, compared.splitlines())
    text = io.StringIO()
    show_runs(Console(file=text, force_terminal=True, width=200, color_system=None), summaries(folder, NOW))
    assert f"{folder}/good outlived 1 death of a process" in " ".join(text.getvalue().split())

"""`persia runs` lists the results of runs and the settings in which they differ."""

import io
import json
import socket
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from persia_cli.commands.runs_view import show_runs, show_side_by_side
from persia_cli.config.record import write_run
from persia_cli.observe.history import read_history
from persia_cli.observe.journal import EVENTS, METRICS, Journal
from persia_cli.observe.overview import differing_settings, summaries, summarize
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
    assert {name: each.state for name, each in found.items()} == {
        "good": "done",
        "bad": "failed",
        "two": "done",
        "dead": "silent",
        "unborn": "silent",
        "torn": "damaged",
    }
    good = read_history(folder / "good")
    best = max(good.evaluations, key=lambda line: line["auc"])
    assert (found["good"].auc, found["good"].judged_step) == ({"click": best["auc"]}, best["step"])
    assert found["two"].auc is not None
    assert list(found["two"].auc) == ["click", "buy"]
    assert found["bad"].note == "the disk is full"
    assert (found["unborn"].step, found["unborn"].auc, found["unborn"].began_s) == (None, None, None)


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


def test_compared_runs_are_judged_by_the_same_evaluation(persia, tmp_path: Path) -> None:
    """The best of three evaluations is not the last."""
    made_up_run(tmp_path / "a", 30, phase="done")
    path = tmp_path / "a" / METRICS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["split"] == "eval":
            line["auc"] = {500: 0.6123, 1000: 0.8123, 1500: 0.7123}[line["step"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = json.loads(persia("runs", "compare", str(tmp_path / "a"), str(tmp_path / "a"), "--json").out)["figures"]
    listed = json.loads(persia("runs", "ls", str(tmp_path), "--json").out)["runs"][0]
    assert (figures["AUC"][0], figures["evaluated at step"][0]) == ("0.8123", "1,000")
    assert (listed["auc"], listed["judged_step"]) == ({"click": 0.8123}, 1000)


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


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        made_up_run(tmp_path / name, 1, phase="done")
    assert [Path(each.run_dir).name for each in summaries(tmp_path, NOW)] == ["c", "a", "b"]


def test_a_line_of_text_each_without_a_terminal(persia, folder: Path) -> None:
    ended = persia("runs", "ls", str(folder))
    assert ended.code == 0, ended.err
    assert len(ended.out.splitlines()) == 6
    [line] = [line for line in ended.out.splitlines() if line.startswith(f"run_dir={folder}/two ")]
    assert " auc_click=0." in line
    assert " log_loss_buy=0." in line
    assert f"next      persia runs compare {folder}/" in ended.err


def test_json_has_all(persia, folder: Path) -> None:
    runs = json.loads(persia("runs", "ls", str(folder), "--json").out)["runs"]
    assert {Path(run["run_dir"]).name for run in runs} == {"good", "bad", "two", "dead", "unborn", "torn"}


def test_a_folder_that_is_not_there_is_an_error(persia, tmp_path: Path) -> None:
    ended = persia("runs", "ls", str(tmp_path / "nowhere"))
    assert (ended.code, ended.out) == (2, "")
    assert "there is no folder" in ended.err


def test_an_empty_folder_holds_no_runs(persia, tmp_path: Path) -> None:
    ended = persia("runs", "ls", str(tmp_path))
    assert (ended.code, ended.out, ended.err) == (0, "", f"note      {tmp_path} holds no runs\n")


def test_settings_that_differ(tmp_path: Path) -> None:
    for name, settings in {
        "a": {"seed": 1, "model": {"kind": "ffnn", "dim": 8, "hidden": [4]}},
        "b": {"seed": 2, "model": {"kind": "ffnn", "dim": 8, "hidden": [4, 2]}},
    }.items():
        (tmp_path / name).mkdir()
        write_run(make_run(**settings), tmp_path / name / "config.yaml")
    found = differing_settings([read_history(tmp_path / "a"), read_history(tmp_path / "b")])
    assert found == {"seed": ["1", "2"], "model.hidden": ["[4]", "[4, 2]"]}


def test_compare_shows_settings_and_metrics(persia, folder: Path) -> None:
    ended = persia("runs", "compare", str(folder / "good"), str(folder / "two"))
    assert ended.code == 0, ended.err
    assert f'name=dataset.labels {folder}/good="[\\"click\\"]"' in ended.out
    assert "name=AUC " in ended.out
    assert persia("runs", "compare", str(folder / "good")).code == 2


def test_a_run_that_outlived_a_death_is_marked(persia, folder: Path) -> None:
    with closing(Journal(folder / "good" / EVENTS)) as events:
        events.write(event="recovered", replica="data-loader-0", repeated={"steps": 3}, lost=0, seconds=1.5)
    listed = json.loads(persia("runs", "ls", str(folder), "--json").out)["runs"]
    assert {Path(each["run_dir"]).name: each["recoveries"] for each in listed if each["recoveries"]} == {"good": 1}
    compared = persia("runs", "compare", str(folder / "good"), str(folder / "two")).out
    assert f"name=recoveries {folder}/good=1 {folder}/two=-" in compared
    text = io.StringIO()
    show_runs(Console(file=text, force_terminal=True, width=200, color_system=None), summaries(folder, NOW))
    assert f"{folder}/good outlived 1 death of a process" in " ".join(text.getvalue().split())


def test_tables_keep_every_digit_on_a_narrow_terminal(folder: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=40, highlight=False, color_system=None)
    show_runs(console, summaries(folder, NOW))
    show_side_by_side(console, [folder / "good"], {"seed": ["0"]}, {"AUC": ["0.7700"]})
    printed = text.getvalue()
    assert "failed: the disk is full" in printed
    assert " ".join(printed.split()).count("evaluation that a run selected itself") == 2
    assert str(folder / "good") in printed
    assert "0.7700" in printed

"""The pages' data over a real connection: rows, curves, details, and what is refused."""

import base64
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from persia_cli.dashboard.app import STATIC
from persia_cli.dashboard.page_file import sweep_file
from persia_cli.dashboard.panels import GROUPS
from persia_cli.main import app
from persia_cli.observe.history import key_metrics, read_history
from persia_cli.observe.journal_keys import METRIC_KEYS
from persia_cli.observe.outcome import JobMetrics
from persia_cli.serving.http.app import PAGE
from persia_cli.sweeps.folder import PointOutcome, SweepRequest, write_results
from persia_cli.sweeps.points import Point
from tests.support.dashboards import Asked, Event, dashboard_over
from tests.support.made_up_run import made_up_run
from tests.support.page_files import data_of
from tests.support.runs import make_run

TOKEN = "c0ffee-c0ffee-c0ffee"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    made_up_run(tmp_path / "runs" / "done", 30, phase="done", step=1500)
    made_up_run(tmp_path / "runs" / "failed", 20, labels=("click", "buy"), phase="failed", step=9, error="<b>no</b>")
    made_up_run(tmp_path / "runs" / "running", 12)
    return tmp_path


@pytest.fixture
def asked(runs: Path) -> Iterator[Asked]:
    with dashboard_over(runs) as found:
        yield found


def rows_in(events: Iterator[Event], rows: dict[str, Any] | None = None) -> dict[str, Any]:
    """Apply the next event to the rows."""
    found = next(events).value
    gone = found["gone"]
    new = {row["run"]: row for row in found["rows"]}
    return {name: row for name, row in ((rows or {}) | new).items() if name not in gone}


def test_the_list_has_states_and_the_last_evaluation_of_each_run(asked: Asked, runs: Path) -> None:
    with (runs / "runs" / "running" / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1, "half a li')
    damaged = made_up_run(runs / "damaged", 10)
    (damaged / "config.yaml").write_text("model: [1\n")
    with asked.events("/api/rows") as events:
        rows = rows_in(events)
        assert {name: row["state"] for name, row in rows.items()} == {
            "runs/done": "done", "runs/failed": "failed", "runs/running": "running", "damaged": "damaged",
        }  # fmt: skip
        last = read_history(runs / "runs" / "done").evaluations[-1]
        done, evaluations = rows["runs/done"], read_history(runs / "runs" / "done").evaluations
        assert (done["spark"], done["metric"], done["is_low"]) == ([line["auc"] for line in evaluations], "AUC", False)
        assert done["score"] == ["auc", last["auc"], last["step"]]
        assert (done["model"], done["mode"], done["step"]) == ("ffnn", "hybrid", 1500)
        assert rows["runs/failed"]["text"] == "<b>no</b>"
        shutil.rmtree(runs / "runs" / "done")
        made_up_run(runs / "runs" / "new", 10)
        while "runs/done" in rows or "runs/new" not in rows:
            rows = rows_in(events, rows)
        assert rows.keys() == {"runs/failed", "runs/running", "runs/new", "damaged"}


def test_curves_go_on_after_the_last_event_and_start_again_with_another_file(asked: Asked, runs: Path) -> None:
    metrics = runs / "runs" / "running" / "metrics.jsonl"
    history = read_history(metrics.parent)
    with asked.events("/api/curves", run="runs/running") as events:
        first = next(event for event in events if event.kind == "curves")
    assert first.value["all"]
    train = first.value["splits"]["train"]
    assert train["step"] == [line["step"] for line in history.training]
    assert train["auc"] == [line["window_auc"] for line in history.training]
    assert first.value["splits"]["eval"]["auc"] == [line["auc"] for line in history.evaluations]
    assert int(first.id.partition("-")[2]) == metrics.stat().st_size

    whole = json.dumps(history.training[-1] | {"step": 999_999}) + "\n"
    with metrics.open("a") as file:
        file.write(whole + whole[:40])
    with asked.events("/api/curves", last=first.id, run="runs/running") as events:
        more = next(event for event in events if event.kind == "curves")
    assert not more.value["all"]
    assert more.value["splits"]["train"]["step"] == [999_999]
    assert int(more.id.partition("-")[2]) == metrics.stat().st_size - 40

    shutil.rmtree(metrics.parent)
    made_up_run(metrics.parent, 3)
    with asked.events("/api/curves", last=more.id, run="runs/running") as events:
        again = next(event for event in events if event.kind == "curves")
        assert again.value["all"]
        assert len(again.value["splits"]["train"]["step"]) == 3
        shutil.rmtree(metrics.parent)
        assert any(event.kind == "gone" for event in events)


def test_long_curves_are_thinned_and_damaged_lines_left_out(asked: Asked, runs: Path) -> None:
    run = made_up_run(runs / "long", 100)
    metrics = run / "metrics.jsonl"
    line = metrics.read_bytes().splitlines(keepends=True)[0]
    metrics.write_bytes(line * 7_000 + b"\xff{]\n[1]\n" + line)
    with asked.events("/api/curves", run="long") as events:
        steps = next(event for event in events if event.kind == "curves").value["splits"]["train"]["step"]
    assert 2000 < len(steps) <= 3001
    details = asked.get("/api/run", run="long").json()
    assert details["state"] == "damaged"
    assert "line 7001" in details["text"]


def test_details_are_those_of_the_report(asked: Asked, runs: Path) -> None:
    found = asked.get("/api/run", run="runs/done").json()
    history = read_history(runs / "runs" / "done")
    assert found["facts"] == key_metrics(history)
    assert found["reliability"]["step"] == history.judged["step"]  # type: ignore[index]
    assert found["reliability"]["labels"] == history.reliability["labels"]  # type: ignore[index]
    assert found["tables"]["Tables"][1][:2] == ["a", "4,000"]
    assert found["notes"] == ["table a is full & <refuses> new ids"]
    assert "kind: ffnn" in found["config"]


def test_every_metric_has_a_chart() -> None:
    """Without places in the record, and without staleness, which is an object."""
    drawn = [key for panels in GROUPS.values() for panel in panels for key in panel.curves]
    assert sorted(drawn) == sorted(
        METRIC_KEYS.keys() - {"time", "step", "samples", "split", "eval_samples", "staleness"}
    )


def test_a_comparison_has_the_settings_that_differ_and_names_damaged_runs(asked: Asked, runs: Path) -> None:
    (made_up_run(runs / "bad", 2) / "events.jsonl").write_text("{\n")
    found = asked.get("/api/compare", run=["runs/done", "runs/failed", "bad"]).json()
    assert found["settings"] == {"dataset.labels": ['["click"]', '["click", "buy"]']}
    assert found["facts"]["steps"] == ["1,500", "1,000"]
    assert found["damaged"].keys() == {"bad"}


def test_logs_are_searched_in_any_case(asked: Asked, runs: Path) -> None:
    roles = runs / "runs" / "done" / "roles"
    roles.mkdir()
    (roles / "nn-worker-0.log").write_text("one\nWarning: two\nthree warning\n")
    found = asked.get("/api/logs", run="runs/done", file="nn-worker-0.log", text="WARNING").json()
    assert found["lines"] == ["Warning: two", "three warning"]
    assert found["files"] == ["events.jsonl", "nn-worker-0.log"]
    [line] = asked.get("/api/logs", run="runs/done", file="events.jsonl", text="refuses").json()["lines"]
    assert line.endswith("warning text=table a is full & <refuses> new ids")


def test_a_sweep_shows_the_settings_that_none_beats(asked: Asked, runs: Path) -> None:
    folder = SweepRequest(("model=ffnn,dlrm,dcn_v2",), (), None, "auc", str(runs)).write(
        runs / "sweep", [make_run()] * 3
    )
    made_up_run(folder / "points" / "001-ffnn", 10, phase="done", step=500)
    outcomes = [
        PointOutcome(
            Point((f"model={model}",), (("model", model), ("mode.staleness", "4"))), "1",
            f"points/{number:03}-{model}", 1.0, JobMetrics(speed, {"auc": auc}, 100, 500, 3), None,
        )
        for number, (model, speed, auc) in enumerate([("ffnn", 9.0, 0.7), ("dlrm", 5.0, 0.8), ("dcn_v2", 4.0, 0.75)], 1)
    ]  # fmt: skip
    write_results(folder, outcomes)
    page = runs / "sweep.html"
    page.write_text(sweep_file(folder, "three models", "auc", time.time()))
    data = data_of(page)
    assert (data["title"], data["sweep"]["text"]) == ("sweep", "three models")
    assert [(row["run"], row["state"]) for row in data["rows"]] == [("points/001-ffnn", "done")]
    found = asked.get("/api/sweep", sweep="sweep").json()
    assert found["settings"] == data["sweep"]["settings"]
    assert {each["staleness"] for each in found["settings"]} == {4}
    assert {each["others"]: each["is_best"] for each in found["settings"]} == {
        "ffnn": True, "dlrm": True, "dcn_v2": False,
    }  # fmt: skip
    assert [each["others"] for each in found["settings"] if each["is_top"]] == ["dlrm"]
    assert (found["state"], found["points"], found["done"], found["failed"]) == ("done", 3, 3, 0)
    with asked.events("/api/rows", sweep="sweep") as events:
        assert rows_in(events).keys() == {"sweep/points/001-ffnn"}
    with asked.events("/api/rows") as events:
        event = next(events)
    assert "sweep/points/001-ffnn" not in {row["run"] for row in event.value["rows"]}
    assert [each["sweep"] for each in event.value["sweeps"]] == ["sweep"]
    with dashboard_over(folder) as alone:
        assert alone.get("/api/sweep", sweep=".").json()["points"] == 3
        with alone.events("/api/rows", sweep=".") as events:
            assert rows_in(events).keys() == {"points/001-ffnn"}


def test_nothing_outside_of_the_folder_is_read(tmp_path: Path) -> None:
    folder, secret = tmp_path / "folder", "the secret text"
    outside = made_up_run(tmp_path / "outside", 3)
    (outside / "events.jsonl").write_text(secret)
    inside = made_up_run(folder / "inside", 3)
    (inside / "roles").mkdir()
    (inside / "roles" / "x.log").symlink_to(outside / "events.jsonl")
    (folder / "link").symlink_to(outside, target_is_directory=True)
    linked = made_up_run(folder / "linked", 3)
    for name in ("metrics.jsonl", "events.jsonl"):
        (linked / name).unlink()
        (linked / name).symlink_to(outside / name)
    names = ["../outside", "inside/../../outside", str(outside), "link", "linked", "", "..", "in\0side", "x" * 5000]
    with dashboard_over(folder) as asked:
        answers = [asked.get(f"/api/{page}", run=name) for name in names for page in ("run", "compare", "curves")]
        answers += [asked.get("/api/logs", run="inside", file=file) for file in ("x.log", "../config.yaml", "")]
        answers += [asked.get("/api/sweep", sweep=name) for name in names]
        answers += [asked.get(f"/static/{path}") for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "")]
        assert {answer.status for answer in answers} == {404}
        assert not any(secret.encode() in answer.body for answer in answers)
        with asked.events("/api/rows") as events:
            rows = rows_in(events)
    assert {name: row["state"] for name, row in rows.items()} == {"inside": "running", "linked": "damaged"}


def test_one_odd_run_spoils_no_other(asked: Asked, runs: Path) -> None:
    made_up_run(runs / "latin", 3).rename(runs / "latin-\udce9")  # a name that is not in UTF-8
    looped = made_up_run(runs / "looped", 3) / "metrics.jsonl"
    looped.unlink()
    looped.symlink_to(looped.name)
    with (runs / "runs" / "failed" / "events.jsonl").open("a") as file:
        file.write('{"time": Infinity, "event": "warning", "text": "half of a character: \\ud800"}\n')
    with asked.events("/api/rows") as events:
        assert len(rows_in(events)) == 5
    assert "half of" in asked.get("/api/logs", run="runs/failed", file="events.jsonl").json()["lines"][-1]


BOMB = "name:\n - &a0 [x, x]\n" + "".join(f" - &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 25))


def test_folders_of_others_cost_bounded_time_and_memory(asked: Asked, runs: Path) -> None:
    """Aliases make gigabytes of a short YAML, and a reader of a pipe waits for ever."""
    bomb, deep = made_up_run(runs / "bomb", 3), made_up_run(runs / "deep", 3)
    text = (bomb / "config.yaml").read_text()
    (bomb / "config.yaml").write_text(re.sub(r"^name:.*\n", BOMB, text, flags=re.MULTILINE))
    with (deep / "events.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n")
    for name in ("config.yaml", "metrics.jsonl", "events.jsonl"):
        pipe = made_up_run(runs / f"pipe-{name}", 3) / name
        pipe.unlink()
        os.mkfifo(pipe)
    huge = made_up_run(runs / "huge", 3) / "metrics.jsonl"
    os.truncate(huge, 2**40)
    with asked.events("/api/rows") as events:
        rows = rows_in(events)
    assert (rows["bomb"]["state"], "alias" in rows["bomb"]["text"]) == ("damaged", True)
    assert rows["runs/done"]["state"] == "done"
    for name in ("bomb", "pipe-metrics.jsonl", "pipe-events.jsonl", "huge"):
        found = asked.get("/api/run", run=name).json()
        assert (found["state"], len(found["text"]) < 300) == ("damaged", True), found
        ended = typer.testing.CliRunner().invoke(app, ["report", str(runs / name)])
        assert (getattr(ended.exception, "exit_code", None), "\n" in str(ended.exception)) == (2, False)
    assert typer.testing.CliRunner().invoke(app, ["runs", "ls", str(runs)]).exit_code == 0


def test_only_names_of_this_machine_are_answered_and_browsers_load_nothing_else(asked: Asked) -> None:
    for host in ("localhost", "127.0.0.1:99", "[::1]:8600"):
        assert asked.get("/", {"Host": host}).status == 200
    for host in ("evil.example", "127.0.0.1.evil.example:8600", "localhost.evil.example", "10.0.0.1", ""):
        assert asked.get("/api/run", {"Host": host}, run="runs/done").status == 421
    for site in ("http://evil.example", "http://localhost:1", "null"):
        assert asked.get("/api/run", {"Host": "localhost:8600", "Origin": site}, run="runs/done").status == 403
    for path in ("/", "/static/app.js", "/api/panels", "/nowhere"):
        rules = asked.get(path).headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in rules
        assert "unsafe" not in rules


def test_pages_work_behind_a_prefix() -> None:
    """A proxy may serve them at /persia/: no address in them begins at the root."""
    files = [PAGE, *(path for path in STATIC.iterdir() if path.suffix in (".js", ".html") and "uPlot" not in path.name)]
    assert len(files) > 5
    for path in files:
        rooted = r"""(?:href|src)="/|["'`]/(?:api|static|v[12]|\$)"""
        assert not re.findall(rooted, path.read_text(encoding="utf-8")), path


def test_a_link_that_the_command_names_is_followed(runs: Path) -> None:
    (runs / "link").symlink_to(runs / "runs")
    with dashboard_over(runs / "link") as asked, asked.events("/api/rows") as events:
        assert set(rows_in(events)) == {"done", "failed", "running"}


def test_a_token_is_wanted_of_every_request(runs: Path) -> None:
    file = runs / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    password = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    with dashboard_over(runs, file) as asked:
        for path in ("/", "/static/app.js", "/api/rows", "/api/run?run=runs/done"):
            for given in ({}, {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": "Basic !"}):
                refused = asked.get(path, given)
                assert refused.status == 401
                assert refused.headers["www-authenticate"].startswith("Basic")
        assert asked.get("/", {"Authorization": f"Basic {password}", "Host": "machine.example"}).status == 200


def test_a_head_without_end_is_refused(asked: Asked) -> None:
    head = b"GET / HTTP/1.1\r\nX-A: " + b"a" * 2**26
    with socket.create_connection(("127.0.0.1", asked.port), timeout=10) as client, pytest.raises(ConnectionError):
        client.sendall(head)
    assert asked.get("/", {}).status == 200


def test_the_command_refuses_what_it_cannot_serve(runs: Path) -> None:
    for words in (["nowhere"], [str(runs), "--host", "0.0.0.0"], [str(runs), "--token-file", str(runs / "none")]):
        ended = typer.testing.CliRunner().invoke(app, ["dashboard", *words])
        assert getattr(ended.exception, "exit_code", None) == 2


def test_a_run_that_has_written_nothing_yet_is_shown(asked: Asked, runs: Path) -> None:
    queued = made_up_run(runs / "queued", 1)
    for name in ("metrics.jsonl", "events.jsonl"):
        (queued / name).unlink()
    with asked.events("/api/rows") as events:
        row = rows_in(events)["queued"]
    assert (row["state"], row["name"], row["step"]) == ("silent", "small", None)
    with asked.events("/api/curves", run="queued") as events:
        assert next(events).kind == "state"
    assert asked.get("/api/run", run="queued").json()["state"] == "silent"

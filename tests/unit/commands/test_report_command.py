"""`persia report` shows runs that are done, going on, silent, failed or empty, in a page that needs nothing else."""

import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from persia_cli.observe.journal import EVENTS, Journal
from tests.support.made_up_run import made_up_run
from tests.support.page_files import data_of


def report_of(persia: Any, *words: str) -> dict[str, Any]:
    """Write the page of the run in `run`, and return its details."""
    ended = persia("report", "run", *words)
    assert (ended.code, ended.out) == (0, "")
    path = Path(words[-1] if words else "run/report.html")
    assert ended.err == f"report    {path}\n"
    details: dict[str, Any] = data_of(path)["run"]
    return details


def texts_of(details: dict[str, Any]) -> set[str]:
    return {cell for rows in details["tables"].values() for row in rows for cell in row}


def test_the_page_of_a_finished_run(persia) -> None:
    made_up_run(Path("run"), 20, phase="done", step=1000)
    made_up_run(Path("run/evals/20261121-101531"), 10)
    details = report_of(persia)
    data = data_of(Path("run/report.html"))
    assert data["title"] == "run"
    assert data["curves"]["train"]["step"] == [50 * number for number in range(1, 21)]
    assert data["curves"]["eval"]["step"] == [500, 1000]
    assert details["state"] == "done"
    assert details["notes"] == ["table a is full & <refuses> new ids"]
    assert details["facts"]["peak GPU memory"] == "3,072 MiB"
    assert details["reliability"]["step"] == 1000
    assert details["staleness"] == {"mean": 2.76, "bound": 3, "shares": {"1": 4.0, "2": 16.0, "3": 80.0}}
    assert {"in training", "persia eval, 20261121-101531", "nn-worker-0", "4,000", "90,000"} <= texts_of(details)
    assert {"ids without a row", "6.25%"} <= texts_of(details)
    assert "processors" not in texts_of(details)
    assert details["summary"].keys() == {"model", "training", "run directory"}
    assert "kind: ffnn" in details["config"]


def test_texts_of_a_run_cannot_end_its_data_or_become_html(persia) -> None:
    text = "</script><script>alert(1)</script><!--<script>"
    made_up_run(Path("run"), 10, labels=("click", text.replace("/", "")), phase="failed", error=text, exit_code=1)
    Path("run").rename(folder := "<b>run&")
    assert persia("report", folder).code == 0
    data = data_of(Path(folder, "report.html"))
    assert (data["title"], data["run"]["text"]) == (folder, text)


def test_a_failed_run_shows_the_cause_and_recoveries_before_it(persia) -> None:
    made_up_run(Path("run"), 0, phase="failed", error="nn-worker-0 was killed by SIGKILL:\n  a <line>", exit_code=1)
    with closing(Journal(Path("run") / EVENTS)) as events:
        about = {"event": "recovered", "seconds": 1.26}
        events.write(**about, replica="embedding-worker-0", cause="was killed by SIGKILL", repeated={"batches": 12})
        events.write(**about, replica="nn-worker-0", cause="it <died>", repeated={"steps": 1200}, checkpoint=4000)
    details = report_of(persia)
    assert (details["state"], details["text"]) == ("failed", "nn-worker-0 was killed by SIGKILL:\n  a <line>")
    assert {"embedding-worker-0", "was killed by SIGKILL", "it <died>"} <= texts_of(details)
    assert "after 1.3 s; 12 batches sent again" in texts_of(details)
    assert "after 1.3 s; 1,200 steps after step 4,000 trained again" in texts_of(details)


def test_a_run_that_has_just_begun_is_shown_so(persia) -> None:
    made_up_run(Path("run"), 0)
    details = report_of(persia)
    assert (details["state"], details["staleness"], details["reliability"]) == ("running", None, None)


def test_a_run_that_died_silently_differs_from_a_running_one(persia) -> None:
    made_up_run(Path("run"), 0)
    for name in ("metrics.jsonl", "events.jsonl"):
        path = Path("run") / name
        path.write_text(re.sub(r'"time": \d+', '"time": 1000000000', path.read_text()))
    # The clock of a coordinator on another machine may be wrong: what it has just written is new.
    assert report_of(persia, "-o", "page.html")["state"] == "running"
    for path in Path("run").glob("*.jsonl"):
        os.utime(path, (1e9, 1e9))
    details = report_of(persia, "-o", "page.html")
    assert details["state"] == "silent"
    assert details["text"].startswith("the record has no end, and nothing was written since 2001-09-")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["nothing"], "nothing does not contain a run"), (["run", "-o", "page.png"], "page.png: "),
     (["run", "-o", "none/page.html"], "none/page.html: there is no folder")],
)  # fmt: skip
def test_mistakes(persia, words: list[str], sentence: str) -> None:
    made_up_run(Path("run"), 1)
    ended = persia("report", *words)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {sentence}")
    assert sorted(path.name for path in Path().iterdir()) == ["conf", "run"]


@pytest.mark.parametrize(
    ("name", "line", "sentence"),
    [
        ("metrics.jsonl", '{"time": 1.0, "spmit": "train"}', "the key 'split' is missing"),
        ("metrics.jsonl", '{"time": 1.0, "split": "tr', "metrics.jsonl is damaged: line 14"),
        ("events.jsonl", "[1]", "events.jsonl is damaged: line"),
    ],
)
def test_a_damaged_record_is_reported_in_a_sentence(persia, name: str, line: str, sentence: str) -> None:
    made_up_run(Path("run"), 12, phase="done", step=600)
    with Path("run", name).open("a") as file:
        file.write(line + "\n")
    ended = persia("report", "run")
    assert ended.code == 2
    assert sentence in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not Path("run/report.html").exists()

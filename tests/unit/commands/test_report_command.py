"""`persia report` shows runs that are done, going on, silent, failed or empty, in a page that needs nothing else."""

import os
import re
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.image import imread

from persia_cli.observe.history import read_history
from persia_cli.observe.journal import EVENTS, Journal
from persia_cli.observe.panels import panels_of
from tests.support.made_up_run import made_up_run

VOID = {"meta", "br", "hr", "link", "img"}


class Page(HTMLParser):
    """Checks that every element is closed, and keeps texts and whatever refers to something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value for name, value in attributes if value and name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


def test_the_page_of_a_finished_run(persia) -> None:
    made_up_run(Path("run"), 20, phase="done", step=1000)
    made_up_run(Path("run/evals/20261121-101531"), 10)
    ended = persia("report", "run")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "report    run/report.html\n"
    html = Path("run/report.html").read_text()
    page = Page(html)
    assert all(reference.startswith("#") for reference in page.references)
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert set(re.findall(r"(?<!xmlns=\")(?<!xlink=\")https?://[^\s\"<]+", html)) == set()
    panels = panels_of(read_history(Path("run")))
    assert {panel.title for panel in panels} <= set(page.texts)
    assert page.tags.count("svg") == len(panels) == 8
    assert "done" in page.texts
    assert "table a is full & <refuses> new ids" in page.texts
    assert {"in training", "persia eval, 20261121-101531", "nn-worker-0", "4,000", "90,000"} <= set(page.texts)
    assert {"ids without a row", "6.25%"} <= set(page.texts)
    assert {"peak GPU memory", "3,072 MiB"} <= set(page.texts)
    assert "processors" not in page.texts


def test_a_failed_run_shows_the_cause_and_recoveries_before_it(persia) -> None:
    made_up_run(Path("run"), 0, phase="failed", error="nn-worker-0 was killed by SIGKILL:\n  a <line>", exit_code=1)
    with closing(Journal(Path("run") / EVENTS)) as events:
        about = {"event": "recovered", "seconds": 1.26}
        events.write(**about, replica="embedding-worker-0", cause="was killed by SIGKILL", repeated={"batches": 12})
        events.write(**about, replica="nn-worker-0", cause="it <died>", repeated={"steps": 1200}, checkpoint=4000)
    assert persia("report", "run").code == 0
    texts = Page(Path("run/report.html").read_text()).texts
    assert {"failed", "nn-worker-0 was killed by SIGKILL:\n  a <line>"} <= set(texts)
    assert {"Recoveries", "embedding-worker-0", "was killed by SIGKILL", "it <died>"} <= set(texts)
    assert "after 1.3 s; 12 batches sent again" in texts
    assert "after 1.3 s; 1,200 steps after step 4,000 trained again" in texts


def test_a_run_that_has_just_begun_is_shown_so(persia) -> None:
    made_up_run(Path("run"), 0)
    assert persia("report", "run").code == 0
    texts = Page(Path("run/report.html").read_text()).texts
    assert {"running", "No log interval of training has ended yet."} <= set(texts)
    assert persia("report", "run", "-o", "page.png").code == 0
    assert imread("page.png").shape[1] == 2 * 960


def test_a_run_that_died_silently_differs_from_a_running_one(persia) -> None:
    made_up_run(Path("run"), 0)
    for name in ("metrics.jsonl", "events.jsonl"):
        path = Path("run") / name
        path.write_text(re.sub(r'"time": \d+', '"time": 1000000000', path.read_text()))
    assert persia("report", "run", "-o", "page.html").code == 0
    # The clock of a coordinator on another machine may be wrong: what it has just written is new.
    assert "running" in Page(Path("page.html").read_text()).texts
    for path in Path("run").glob("*.jsonl"):
        os.utime(path, (1e9, 1e9))
    assert persia("report", "run", "-o", "page.html").code == 0
    page = Page(Path("page.html").read_text())
    assert "silent" in page.texts
    assert any(text.startswith("the record has no end, and nothing was written since 2001-09-") for text in page.texts)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["nothing"], "nothing does not contain a run"), (["run", "-o", "page.pdf"], "page.pdf: "),
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

"""The dashboard in Chromium: pages that load, go on live, compare, and are used by keyboard."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import uvicorn
from typer.testing import CliRunner

from persia_cli.main import app
from persia_cli.observe.journal import METRICS
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from tests.support.launched import ENDLESS, LIMIT_S, Launched
from tests.support.made_up_run import made_up_run
from tests.support.small_model import write_small_model

pytest.importorskip("playwright", reason="playwright is not installed (persia-cli[test-slow])")

from playwright.sync_api import sync_playwright

from tests.support.dashboards import dashboard_over, listening

pytestmark = pytest.mark.slow
LOSS = "canvas[aria-label^='Loss over step']"
LIMIT_MS = 1000 * LIMIT_S
RUNS, LINES = 200, 10_000


@pytest.fixture
def page() -> Iterator[Any]:
    """A page without errors, which asks only the dashboard."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page, errors, hosts = browser.new_page(), [], set()
        page.set_default_timeout(LIMIT_MS)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
        yield page
        browser.close()
    assert errors == []
    assert hosts <= {"127.0.0.1", None}


@contextmanager
def opened(folder: Path, page: Any) -> Iterator[str]:
    """Yield the address of a dashboard, which ends after its page."""
    with dashboard_over(folder) as asked:
        try:
            yield asked.url
        finally:
            page.goto("about:blank")


def made_up(folder: Path) -> Path:
    made_up_run(folder / "runs" / "a", 100, phase="done", step=5000)
    made_up_run(folder / "runs" / "b", 50, labels=("click", "buy"), phase="failed", step=2500, error="<b>no</b>")
    return folder


def test_a_job_is_followed_until_it_is_killed(tmp_path: Path, page: Any) -> None:
    with Launched(ENDLESS, tmp_path / "runs" / "job") as job, opened(tmp_path, page) as url:
        job.wait_for_training()
        page.goto(f"{url}/run?run=runs/job")
        page.locator(LOSS).wait_for()
        page.get_by_text("running", exact=True).wait_for()
        label = page.locator(LOSS).get_attribute("aria-label")
        page.wait_for_function(
            "before => [...document.querySelectorAll('canvas')].every(c => c.getAttribute('aria-label') !== before)",
            arg=label,
        )
        for pid in [job.process.pid, *job.pids().values()]:
            os.kill(pid, signal.SIGKILL)
        page.locator(".badge.dead").wait_for()
        page.get_by_label("Log", exact=True).select_option("events.jsonl")
        page.get_by_label("Search in the log").fill("PHASE=TRAINING")
        page.get_by_text("1 line, the last 1 shown").wait_for()
        shutil.rmtree(tmp_path / "runs" / "job")
        page.get_by_role("alert").get_by_text("was removed").wait_for()


def tab_to(page: Any, label: str) -> None:
    for _ in range(50):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.ariaLabel") == label:
            return
    pytest.fail(f"the Tab key does not lead to {label}")


def test_runs_are_chosen_and_compared_by_keyboard(tmp_path: Path, page: Any) -> None:
    with opened(made_up(tmp_path), page) as url:
        page.goto(url)
        page.get_by_text("2 runs").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        for name in ("b", "a"):  # the newest first
            tab_to(page, f"Choose runs/{name}")
            page.keyboard.press("Space")
        page.get_by_role("button", name="Compare").focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/compare?*")
        page.get_by_role("region", name="Settings that differ").get_by_text("dataset.labels").wait_for()
        loss = page.locator(LOSS)
        assert "runs/a training" in loss.get_attribute("aria-label")
        assert "runs/b evaluation" in loss.get_attribute("aria-label")
        entry = page.locator("figure", has=loss).get_by_role("button", name="show or hide runs/a training")
        entry.press("Enter")
        assert "u-off" in entry.locator("xpath=..").get_attribute("class")


def test_a_column_sorts_the_runs_and_the_first_charts_are_auc_loss_and_speed(tmp_path: Path, page: Any) -> None:
    with opened(made_up(tmp_path), page) as url:
        page.goto(url)
        names, steps = page.locator("tbody td:first-child"), page.get_by_role("button", name="steps", exact=True)
        for order, shown in (("descending", ["runs/a", "runs/b"]), ("ascending", ["runs/b", "runs/a"])):
            steps.click()
            page.locator(f"th[aria-sort={order}]", has=steps).wait_for()
            assert [text.strip() for text in names.all_text_contents()] == shown
        assert page.locator("svg.spark").count() == 2
        page.goto(f"{url}/run?run=runs/a")
        page.get_by_role("img", name="Reliability").wait_for()
        assert page.locator(".large h3").all_text_contents() == ["AUC", "Loss", "Training speed"]
        assert page.locator("details[open] > summary").all_text_contents()[:2] == ["Quality", "Embedding tables"]
        assert page.locator("h3", has_text="Log loss").count() == 1
        assert page.locator(".styles span").all_inner_texts() == [
            "training", "evaluation", "test", "ideal", "best evaluation",
        ]  # fmt: skip


def test_every_page_is_light_or_dark_as_the_reader_prefers(tmp_path: Path, page: Any) -> None:
    with opened(made_up(tmp_path), page) as url:
        for path in ("/", "/run?run=runs/b", "/compare?run=runs/a&run=runs/b"):
            page.goto(url + path)
            page.get_by_text("live", exact=True).wait_for()
            shades = []
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                shades.append(page.evaluate(SHADES))
            (light_back, light_ink), (dark_back, dark_ink) = shades
            assert light_back > 200 > 80 > light_ink
            assert dark_back < 80 < 200 < dark_ink
        assert page.get_by_text("<b>no</b>").count() == 0  # of the comparison; the page of the run shows it as text
        page.goto(f"{url}/run?run=runs/b")
        page.get_by_role("alert").get_by_text("<b>no</b>").wait_for()
        page.get_by_role("img", name="Reliability").wait_for()


def test_a_report_is_the_same_page_and_needs_no_server(tmp_path: Path, page: Any) -> None:
    run = made_up(tmp_path) / "runs" / "b"
    assert CliRunner().invoke(app, ["report", str(run)]).exit_code == 0
    page.goto((run / "report.html").as_uri())
    page.get_by_role("alert").get_by_text("<b>no</b>").wait_for()
    page.locator(LOSS).wait_for()
    titles = page.locator("h3").all_text_contents()
    with opened(tmp_path, page) as url:
        page.goto(f"{url}/run?run=runs/b")
        page.get_by_role("img", name="Reliability").wait_for()
        assert page.locator("h3").all_text_contents() == titles
    assert {title.split()[0] for title in titles} >= {"Loss", "AUC", "Staleness", "Reliability"}


def test_one_click_on_the_page_of_a_served_model_answers(tmp_path: Path, page: Any) -> None:
    model = write_small_model(tmp_path / "shop")
    served = ServingApp(Predictor.open(model), ServerSettings(str(model)))
    with listening(uvicorn.Server(uvicorn.Config(served, log_level="error", lifespan="off", ws="none"))) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("button", name="Try it", exact=True).click()
        page.get_by_role("row", name="click_probability 0.").wait_for()
        kinds = ["whole number", "whole number", 'list of texts, such as ["a", "b"]', "number"]
        assert page.locator("small").all_text_contents() == kinds
        page.goto("about:blank")


SHADES = """() => {
    const style = getComputedStyle(document.body);
    const shade = (colour) => colour.match(/[0-9]+/g).slice(0, 3).reduce((sum, each) => sum + Number(each), 0) / 3;
    return [shade(style.backgroundColor), shade(style.color)];
}"""


def cpu_s() -> float:
    """CPU seconds of the server and the browser so far, which, unlike time, do not depend on other programs."""
    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in [own, *own.children(recursive=True)])


def test_two_hundred_runs_of_ten_thousand_lines_open_at_once(tmp_path: Path, page: Any) -> None:
    first = made_up_run(tmp_path / "run-000", 100)
    block = (first / METRICS).read_bytes()
    lines = block.splitlines(keepends=True)
    (first / METRICS).write_bytes(block * (LINES // len(lines)) + b"".join(lines[: LINES % len(lines)]))
    for number in range(1, RUNS):
        shutil.copytree(first, tmp_path / f"run-{number:03}")
    with opened(tmp_path, page) as url:
        page.goto(f"{url}/run?run=run-000")  # the browser has the files of the page
        page.locator(LOSS).wait_for()
        for path, shown in {"/": f"text={RUNS} runs", "/run?run=run-001": LOSS}.items():
            times = []
            for _ in range(5):
                begin = cpu_s()
                page.goto(url + path)
                page.locator(shown).first.wait_for()
                times.append(cpu_s() - begin)
            print(path, times)
            assert min(times) < 1.0

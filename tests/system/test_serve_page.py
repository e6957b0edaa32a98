"""The page of `persia serve`, used by a browser as a person uses it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from persia_cli.serving.predictor import Predictor
from tests.support.small_model import write_small_model
from tests.system.test_serve import serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TOKEN = "sesame-sesame-sesame"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]


@contextmanager
def empty_page() -> Iterator[Any]:
    """A page of a browser, which ends with the block."""
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            page.set_default_timeout(20_000)
            yield page
        finally:
            browser.close()


def test_a_person_tries_a_request(tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "shop")
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "token").chmod(0o600)
    told: list[str] = []
    asked: list[str] = []
    options = ("--workers", "1", "--token-file", str(tmp_path / "token"))
    with empty_page() as page:
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        with serving(model, tmp_path / "serve", *options) as server:
            address = f"http://127.0.0.1:{server.port}/"
            page.goto(address)
            page.get_by_text("This server wants its token.").wait_for()
            page.get_by_label("Token of this server").fill("wrong")
            page.get_by_role("button", name="Use it").click()
            page.get_by_text("this server wants its token, as the header").wait_for()
            page.get_by_label("Token of this server").fill(TOKEN)
            page.get_by_role("button", name="Use it").click()
            page.get_by_text("Ready: version 17, served by persia").wait_for()
            assert page.get_by_label("user", exact=True).input_value() == "1"
            assert page.get_by_label("price", exact=True).input_value() == "0.5"
            # An empty field is missing, and dates go as texts, which the server reads where the data had dates.
            for kind, text, value in (
                ("BYTES", "", None), ("BYTES", " ", " "), ("FP32", " ", None), ("FP32", "2024-01-31 ", "2024-01-31"),
                ("UINT64", "9223372036854775813", "9223372036854775813"), ("FP64", "1e3", 1000),
            ):  # fmt: skip
                assert (
                    page.evaluate("([kind, text]) => valueOf({shape: [-1], datatype: kind}, text)", [kind, text])
                    == value
                )
            # Input of a person is text, and never a part of the page.
            page.get_by_label("words", exact=True).fill('["<img src=x onerror=alert(1)>", "lamp"]')
            page.get_by_label("user", exact=True).fill("9223372036854775813")
            page.get_by_role("button", name="Try it", exact=True).click()
            page.locator("#answer").wait_for()
            predictor = Predictor.open(model)
            columns = {
                "user": [2**63 + 5],
                "item": [4],
                "words": [["<img src=x onerror=alert(1)>", "lamp"]],
                "price": [0.5],
            }
            [expected] = predictor.predict(predictor.fields.batch(columns)).values.tolist()
            shown = page.locator("#predictions td").all_inner_texts()
            assert [float(text) for text in shown] == expected
            assert "<img src=x" in page.locator("#command").inner_text()
            assert page.locator("img").count() == 0
            assert TOKEN not in page.content()
            page.get_by_role("button", name="Try it 100 times").click()
            page.get_by_text("101", exact=True).wait_for()
            assert page.locator("#latencies td").all_inner_texts()[1].endswith(" ms")
            page.get_by_label("words", exact=True).fill("7")
            page.get_by_role("button", name="Try it", exact=True).click()
            page.get_by_text("words: is no list").wait_for()
            page.get_by_label("words", exact=True).fill("[[1]]")
            page.get_by_role("button", name="Try it", exact=True).click()
            page.get_by_text("input words").wait_for()
            assert all(url.startswith(address) for url in asked)
            # Chromium tells of answers that are refusals, and of nothing else.
            assert [text for text in told if "status of 40" not in text and "favicon" not in text] == []
            page.screenshot(path=str(tmp_path / "page.png"), full_page=True)

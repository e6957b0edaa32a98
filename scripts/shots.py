"""Pictures of Persia's own screens for the documentation: `python -m scripts.shots [NAME …]` makes docs/pictures/NAME.

They show runs of the shop that the script trains, which takes some minutes, so they stay true. Textual draws the screen
of `persia top` itself; the pages are drawn by Chromium, in light colours and in the font Inter.
"""

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
MAX_BYTES = 150 * 1024
SHOP = ("dataset=dataset.yaml", "cluster=embedded")
PERSIA = [sys.executable, "-m", "persia_cli"]
LIMIT_S = 900

TERMINAL = (122, 24)
"""Columns and lines of the terminal of `persia top`."""
LOOK_STEP = 2000
"""The step of a job at which its screen is taken: curves have a shape by then."""
FONT_PX = 21
"""Size of letters in that picture: blocks of two lines then touch, which they do not at Textual's 20."""


SCALE, QUALITY = 1.6, 0.85
"""Pixels of a picture for each of the page, and the quality of WebP."""
TO_WEBP = """async ([url, quality]) => {
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").drawImage(image, 0, 0);
  const blob = await canvas.convertToBlob({ type: "image/webp", quality });
  return new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(blob);
  });
}"""
FONT = """
  <match>
    <test name="family"><string>{}</string></test>
    <edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit>
  </match>"""
FONTS = f"""\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include>/etc/fonts/fonts.conf</include>{FONT.format("system-ui")}{FONT.format("sans-serif")}
</fontconfig>
"""
"""The font of every computer on which pictures are made."""


def top() -> bytes:
    """Return the screen of `persia top` while a job trains."""
    with subprocess.Popen([*PERSIA, "train", "conf=shop", "--run-dir", "runs/first"]) as job:
        try:
            _wait(lambda: _last_step(Path("runs/first/metrics.jsonl")) >= LOOK_STEP)
            drawn = asyncio.run(_screen(Path("runs/first")))
        finally:
            job.terminate()
    drawn = re.sub(r"@font-face {.*?}\n", "", drawn, flags=re.DOTALL)  # pictures fetch nothing
    return drawn.replace("font-size: 20px", f"font-size: {FONT_PX}px").encode()


async def _screen(run_dir: Path) -> str:
    from persia_cli.commands.top_screen import EVERY_S, WINDOW, TopScreen

    screen = TopScreen(run_dir)
    async with screen.run_test(size=TERMINAL) as pilot:
        await pilot.pause(WINDOW * EVERY_S + 1)  # rates are means over the window
        return screen.export_screenshot()


def report() -> bytes:
    """Return the top of the report of a run."""
    _train()
    _persia("report", "runs/clicks")
    with _page(1000, 862) as page:
        page.goto(Path("runs/clicks/report.html").absolute().as_uri())
        return _picture(page)


def dashboard() -> bytes:
    """Return the first page of the dashboard."""
    _tune()
    with _served("dashboard", "--port", "8600") as address, _page(1180, 490) as page:
        page.goto(address)
        page.locator("svg.spark").first.wait_for()
        return _picture(page)


def comparison() -> bytes:
    """Return the comparison of two runs."""
    _tune()
    with _served("dashboard", "--port", "8600") as address, _page(1000, 800) as page:
        page.goto(f"{address}/compare?run=runs/clicks&run=runs/better")
        page.get_by_role("img", name="AUC").first.wait_for()
        return _picture(page)


def serving() -> bytes:
    """Return the page of a served model with its first answer, without times, which depend on the machine."""
    _train()
    with _served("serve", "runs/clicks", "--port", "8765") as address, _page(820, 545) as page:
        page.goto(address)
        page.get_by_role("button", name="Try it", exact=True).click()
        page.locator("#answer").wait_for()
        return _picture(page)


@cache
def _train() -> None:
    """Train the run of the page Your own data."""
    _persia("recipe", "cp", "shop", "shop")
    _persia("data", "inspect", "shop/clicks.csv.gz", "--write", "dataset.yaml")
    _persia("train", *SHOP, "--run-dir", "runs/clicks")


@cache
def _tune() -> None:
    """Train the runs of the page Tuning too."""
    _train()
    _persia("train", *SHOP, "model=dcn_v2", "--run-dir", "runs/better")
    points = ("model=lr,ffnn,dcn_v2", "seed=1,2", "train.epochs=5")
    _persia("sweep", *SHOP, *points, "--folder", "sweeps/networks")


def _persia(*arguments: str) -> None:
    subprocess.run([*PERSIA, *arguments], check=True, timeout=LIMIT_S)


@contextmanager
def _served(*arguments: str) -> Iterator[str]:
    """Yield the address of a server, which a command starts and prints."""
    with subprocess.Popen([*PERSIA, *arguments], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = next(found for line in server.stderr if (found := re.search(r"http://[0-9.:]+", line)))
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate()


@contextmanager
def _page(width: int, height: int) -> Iterator[Any]:
    """Yield a page of Chromium of this size."""
    from playwright.sync_api import sync_playwright

    Path("fonts.conf").write_text(FONTS)
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox"],
            env={**os.environ, "FONTCONFIG_FILE": str(Path("fonts.conf").absolute())},
        )
        yield browser.new_page(
            viewport={"width": width, "height": height}, device_scale_factor=SCALE, color_scheme="light"
        )
        browser.close()


def _picture(page: Any) -> bytes:
    """Return what the page shows, as WebP, which the browser makes of a PNG."""
    page.wait_for_timeout(1000)  # charts get their size, and draw, a moment after their data
    shot = base64.b64encode(page.screenshot()).decode()
    page.goto("about:blank")
    written = page.evaluate(TO_WEBP, [f"data:image/png;base64,{shot}", QUALITY])
    return base64.b64decode(written.partition(",")[2])


def _last_step(metrics: Path) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(json.loads(metrics.read_text().splitlines()[-1])["step"])
    return 0


def _wait(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"the job has not come so far in {LIMIT_S} s")
        time.sleep(0.5)


SHOTS: dict[str, Callable[[], bytes]] = {
    "top.svg": top,
    "report.webp": report,
    "dashboard.webp": dashboard,
    "comparison.webp": comparison,
    "serving.webp": serving,
}


def main(names: list[str]) -> None:
    """Write the pictures of these names, or all."""
    folder = Path(tempfile.gettempdir(), "shop")  # pages show it
    folder.mkdir()
    os.chdir(folder)
    try:
        for name in names or SHOTS:
            picture = SHOTS[name]()
            if len(picture) > MAX_BYTES:
                raise ValueError(f"{name} has {len(picture):,} bytes, more than {MAX_BYTES:,}")
            (PICTURES / name).write_bytes(picture)
            print(f"{name:<20} {len(picture):>8,} bytes")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])

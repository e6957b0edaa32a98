"""Pictures of Persia's own screens for the documentation: `python -m scripts.shots [NAME …]` makes docs/pictures/NAME.

They show runs of the shop that the script trains, which takes some minutes, so they stay true. Textual draws the screen
of `persia top` itself.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
MAX_BYTES = 150 * 1024
PERSIA = [sys.executable, "-m", "persia_cli"]
LIMIT_S = 900

TERMINAL = (122, 24)
"""Columns and lines of the terminal of `persia top`."""
LOOK_STEP = 2000
"""The step of a job at which its screen is taken: curves have a shape by then."""
FONT_PX = 21
"""Size of letters in that picture: blocks of two lines then touch, which they do not at Textual's 20."""


def top() -> str:
    """Return the screen of `persia top` while a job trains."""
    with subprocess.Popen([*PERSIA, "train", "conf=shop", "--run-dir", "runs/first"]) as job:
        try:
            _wait(lambda: _last_step(Path("runs/first/metrics.jsonl")) >= LOOK_STEP)
            drawn = asyncio.run(_screen(Path("runs/first")))
        finally:
            job.terminate()
    drawn = re.sub(r"@font-face {.*?}\n", "", drawn, flags=re.DOTALL)  # pictures fetch nothing
    return drawn.replace("font-size: 20px", f"font-size: {FONT_PX}px")


async def _screen(run_dir: Path) -> str:
    from persia_cli.commands.top_screen import EVERY_S, WINDOW, TopScreen

    screen = TopScreen(run_dir)
    async with screen.run_test(size=TERMINAL) as pilot:
        await pilot.pause(WINDOW * EVERY_S + 1)  # rates are means over the window
        return screen.export_screenshot()


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


SHOTS: dict[str, Callable[[], str]] = {"top.svg": top}


def main(names: list[str]) -> None:
    """Write the pictures of these names, or all."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in names or SHOTS:
            picture = SHOTS[name]().encode()
            if len(picture) > MAX_BYTES:
                raise ValueError(f"{name} has {len(picture):,} bytes, more than {MAX_BYTES:,}")
            (PICTURES / name).write_bytes(picture)
            print(f"{name:<20} {len(picture):>8,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The screen of `persia top` without a terminal."""

import asyncio
import html
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

TEXT = re.compile(r"<text[^>]*>(.*?)</text>")

Use = Callable[[Any, Callable[[], str]], Awaitable[None]]
"""The actions of a user: gets Textual's pilot, and a function that returns the text on the screen."""


def use_top(run_dir: Path, use: Use) -> None:
    """Open the screen of a run for a user."""
    from persia_cli.commands.top_screen import TopScreen

    async def opened() -> None:
        app = TopScreen(run_dir)
        async with app.run_test(size=(180, 50), notifications=True) as pilot:
            await pilot.pause()
            await use(pilot, lambda: text_of(app))

    asyncio.run(opened())


def text_of(app: Any) -> str:
    """Return the text on a screen, in the order of lines."""
    found = TEXT.findall(app.export_screenshot())
    return html.unescape(" ".join(found)).replace("\xa0", " ")

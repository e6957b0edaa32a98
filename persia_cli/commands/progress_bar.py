"""A progress line at the bottom of a terminal: a phase, a bar if there is space, and the metrics that fit."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from persia_cli.commands.screen import LABEL_WIDTH, clock, fitting, labelled, size

BAR_WIDTH = 20
LINE_S = 10.0
"""Seconds between lines of progress where there is no terminal."""
ROOMY = 60
"""Width of a terminal that has space for a bar and two or three metrics."""


class ProgressBar:
    """A progress line on a terminal; nothing elsewhere."""

    def __init__(self, console: Console, phase: str, bar_from: int = ROOMY) -> None:
        """Begin in `phase`, with a bar on terminals of `bar_from` columns or more; erased at the end."""
        self._console = console
        self._has_bar = console.width >= bar_from
        self._progress = Progress(
            TextColumn("{task.description}", "bold", markup=False, table_column=_column(LABEL_WIDTH - 1)),
            *([BarColumn(bar_width=BAR_WIDTH)] if self._has_bar else []),
            TextColumn("{task.fields[figures]}", markup=False, table_column=_column(None)),
            console=console, disable=not console.is_terminal, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task(phase, total=None, figures="")

    def __enter__(self) -> "ProgressBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def console(self) -> Console:
        """The console for lines above it."""
        return self._progress.console

    @property
    def left_s(self) -> int | None:
        """Seconds left at the rate so far; None if unknown."""
        left = self._progress.tasks[0].time_remaining
        return None if left is None else round(left)

    @property
    def per_second(self) -> float | None:
        """Amount done per second; None if unknown."""
        return self._progress.tasks[0].speed

    def begin(self, phase: str) -> None:
        """Name the phase that begins."""
        self._progress.update(self._task, description=phase)

    def show(self, done: int, total: int | None, parts: Sequence[str]) -> None:
        """Move the bar, and show as many of these metrics, from the first, as fit."""
        self._progress.update(self._task, completed=done, total=total)
        self.show_figures(parts)

    def show_figures(self, parts: Sequence[str]) -> None:
        """Show as many of these metrics, from the first, as fit."""
        phase = max(LABEL_WIDTH, len(self._progress.tasks[0].description) + 1)
        room = self._console.width - phase - (BAR_WIDTH + 1 if self._has_bar else 0)
        self._progress.update(self._task, figures=fitting(parts, room))


@contextmanager
def counting(console: Console, phase: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes the amount done and the total, and shows them; without a terminal as lines."""
    with ProgressBar(console, phase) as bar:
        shown = time.monotonic()

        def show(done: int, total: int) -> None:
            nonlocal shown
            rate = [] if bar.per_second is None else [f"{bar.per_second:,.0f} {unit}/s"]
            parts = [f"{done:,}/{total:,} {unit}", f"{clock(bar.left_s if done < total else 0)} left", *rate]
            bar.show(done, total, parts)
            if not console.is_terminal and time.monotonic() - shown >= LINE_S:
                labelled(console, phase, "  ".join(parts))
                shown = time.monotonic()

        yield show


def bytes_done(bar: ProgressBar, done: int, total: int) -> list[str]:
    """Return the bytes done, the remaining time, and the speed, as texts."""
    rate = [] if bar.per_second is None else [f"{size(bar.per_second)}/s"]
    return [f"{size(done)}/{size(total)}", f"{clock(bar.left_s)} left", *rate]


def _column(least: int | None) -> Column:
    return Column(no_wrap=True, overflow="ellipsis", min_width=least)

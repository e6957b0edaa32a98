"""Output of `persia checkpoint`: a table on a terminal, else a line of text for each thing."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Console

from persia_cli.checkpoint.listing import CheckpointList, CleanUp, ListedCheckpoint
from persia_cli.checkpoint.verification import Verification, VerifyingProgress
from persia_cli.commands.progress_bar import ProgressBar
from persia_cli.commands.screen import clock, key_values, labelled, say, size
from persia_cli.commands.screen_tables import columns, print_whole
from persia_cli.errors import count

UNKNOWN = "-"


def show_list(console: Console, notes: Console, found: CheckpointList) -> None:
    """Print the checkpoints of a run, and on `notes` what is wrong with them."""
    if console.is_terminal and found.checkpoints:
        table = columns("step", "samples", "saved", "size", "rows", "")
        for each in found.checkpoints:
            table.add_row(
                f"{each.step:,}",
                _number(each.samples),
                moment(each.saved_s),
                UNKNOWN if each.nbytes is None else size(each.nbytes),
                _number(each.rows),
                _marks(each),
            )
        print_whole(console, table)
    elif not console.is_terminal:
        for each in found.checkpoints:
            say(console, key_values(asdict(each)))
        for left in found.leftovers:
            say(console, key_values({"leftover": left.path, "state": left.state, "nbytes": left.nbytes}))
    if not found.checkpoints:
        labelled(notes, "note", f"{found.run_dir} has no complete checkpoint")
    for each in found.checkpoints:
        if each.damage:
            labelled(notes, "damaged", each.damage)
    if console.is_terminal:
        for left in found.leftovers:
            labelled(notes, "leftover", f"{left.path}, {size(left.nbytes)}: {left.state}")
    if found.elsewhere:
        labelled(notes, "note", f"persia resume goes on from {found.elsewhere}: nothing later is saved here")
    if found.best_flaw:
        labelled(notes, "note", found.best_flaw)


@contextmanager
def verifying(console: Console) -> Iterator[VerifyingProgress]:
    """Yield the progress of a verification, shown on a terminal."""
    with ProgressBar(console, "verifying") as bar:
        began = time.monotonic()

        def show(progress: VerifyingProgress) -> None:
            seconds = max(time.monotonic() - began, 1e-9)
            rate = f"{progress.rows / seconds:,.0f} rows/s"
            bar.show(progress.work, progress.of, [f"{progress.rows:,} rows", f"{clock(bar.left_s)} left", rate])

        yield VerifyingProgress(on_change=show)


def show_clean_up(console: Console, plan: CleanUp) -> None:
    """Print what would go and what stays."""
    for each in plan.doomed:
        if console.is_terminal:
            labelled(console, "goes", f"{each.folder}, {size(each.nbytes)}: {each.why}")
        else:
            say(console, key_values({"goes": str(each.folder), "nbytes": each.nbytes, "why": each.why}))
    for step, why in plan.retained.items():
        if console.is_terminal:
            labelled(console, "stays", f"step {step:,}: {why}")
        else:
            say(console, key_values({"stays": step, "why": why}))


def show_verification(
    console: Console, notes: Console, found: Sequence[Verification], of_run: Sequence[str] = ()
) -> None:
    """Print each checkpoint with its flaws, one to a line."""
    for each in found:
        if not console.is_terminal:
            figures = {"path": each.path, "step": each.step, "rows": each.rows, "nbytes": each.nbytes}
            say(console, key_values(figures | {"flaws": len(each.flaws)}))
        else:
            state = count(len(each.flaws), "flaw") if each.flaws else "sound"
            labelled(console, state, f"{each.path}, {each.rows:,} rows, {size(each.nbytes)}")
    for flaw in [*of_run, *(flaw for each in found for flaw in each.flaws)]:
        labelled(notes, "flaw", flaw)
    for note in dict.fromkeys(note for each in found for note in each.notes):
        labelled(notes, "note", note)


def moment(seconds: float | None) -> str:
    """Return seconds since 1970 as a local time."""
    return UNKNOWN if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _marks(each: ListedCheckpoint) -> str:
    marks = [("best", each.best), ("resume goes on here", each.resumes), ("DAMAGED", bool(each.damage))]
    return ", ".join(word for word, holds in marks if holds)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"

"""What `persia checkpoint` prints: a table on a terminal, else a line of words for each thing."""

import time
from dataclasses import asdict

from rich.console import Console

from persia_cli.checkpoint.listing import CheckpointList, ListedCheckpoint
from persia_cli.commands.screen import key_values, labelled, say, size
from persia_cli.commands.screen_tables import columns, print_whole

UNKNOWN = "-"


def show_list(console: Console, notes: Console, found: CheckpointList) -> None:
    """Print the checkpoints of a run, and on `notes` what is wrong with them."""
    if console.is_terminal and found.checkpoints:
        table = columns("step", "samples", "saved", "size", "rows", "kind", "")
        for each in found.checkpoints:
            table.add_row(
                f"{each.step:,}",
                _number(each.samples),
                moment(each.saved_s),
                UNKNOWN if each.nbytes is None else size(each.nbytes),
                _number(each.rows),
                each.kind,
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
    if found.note:
        labelled(notes, "note", found.note)


def moment(seconds: float | None) -> str:
    """Return seconds since 1970 as a local time."""
    return UNKNOWN if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _marks(each: ListedCheckpoint) -> str:
    marks = [("best", each.best), ("resume goes on here", each.resumes), ("DAMAGED", bool(each.damage))]
    return ", ".join(word for word, holds in marks if holds)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"

"""Output of `persia checkpoint`."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from persia_cli.checkpoint.description import Description
from persia_cli.checkpoint.listing import CheckpointList, CleanUp, ListedCheckpoint
from persia_cli.checkpoint.verification import Verification, VerifyingProgress
from persia_cli.commands.progress import ProgressBar
from persia_cli.commands.screen import clock, labelled, size
from persia_cli.commands.tables import columns, print_table
from persia_cli.errors import count
from persia_cli.observe.outcome import correction

UNKNOWN = "-"


def show_list(console: Console, notes: Console, listed: CheckpointList) -> None:
    """Print the checkpoints of a run, and on `notes` what is wrong with them."""
    if listed.checkpoints:
        table = columns("step", "samples", "saved", "size", "rows", "")
        for checkpoint in listed.checkpoints:
            table.add_row(
                f"{checkpoint.step:,}",
                _number(checkpoint.samples),
                local_time(checkpoint.saved_s),
                UNKNOWN if checkpoint.nbytes is None else size(checkpoint.nbytes),
                _number(checkpoint.rows),
                _marks(checkpoint),
            )
        print_table(console, table)
    else:
        labelled(notes, "note", f"{listed.run_dir} has no complete checkpoint")
    for checkpoint in listed.checkpoints:
        if checkpoint.damage:
            labelled(notes, "damaged", checkpoint.damage)
    for left in listed.leftovers:
        labelled(notes, "leftover", f"{left.path}, {size(left.nbytes)}: {left.state}")
    if listed.elsewhere:
        labelled(notes, "note", f"persia resume goes on from {listed.elsewhere}: nothing later is saved here")
    if listed.best_flaw:
        labelled(notes, "note", listed.best_flaw)


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
    for doomed in plan.doomed:
        labelled(console, "goes", f"{doomed.folder}, {size(doomed.nbytes)}: {doomed.why}")
    for step, why in plan.retained.items():
        labelled(console, "stays", f"step {step:,}: {why}")


def show_verification(
    console: Console, notes: Console, verified: Sequence[Verification], of_run: Sequence[str] = ()
) -> None:
    """Print each checkpoint with its flaws, one to a line."""
    for checked in verified:
        state = count(len(checked.flaws), "flaw") if checked.flaws else "sound"
        labelled(console, state, f"{checked.path}, {checked.rows:,} rows, {size(checked.nbytes)}")
    for flaw in [*of_run, *(flaw for checked in verified for flaw in checked.flaws)]:
        labelled(notes, "flaw", flaw)
    for note in dict.fromkeys(note for checked in verified for note in checked.notes):
        labelled(notes, "note", note)


def local_time(seconds: float | None) -> str:
    """Return seconds since 1970 as a local time."""
    return UNKNOWN if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _marks(checkpoint: ListedCheckpoint) -> str:
    marks = {"best": checkpoint.best, "resume goes on here": checkpoint.resumes, "DAMAGED": checkpoint.damage}
    return ", ".join(mark for mark, holds in marks.items() if holds)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def show_description(console: Console, content: Description) -> None:
    """Print what a checkpoint holds."""
    _show_head(console, content)
    table = columns("table", "rows", "dim", "dtype", "group", "bytes", "optimizer", "states")
    for saved in content.tables:
        states = UNKNOWN if saved.states is None else ", ".join(f"{n} [{k}]" for n, k in saved.states.items()) or "none"
        table.add_row(
            saved.name,
            f"{saved.rows:,}",
            str(saved.dim),
            saved.dtype,
            str(saved.group),
            f"{saved.nbytes:,}",
            saved.optimizer or UNKNOWN,
            states,
        )
    print_table(console, table)
    dense = columns("dense", "shape")
    for name, shape in content.dense.items():
        dense.add_row(name, "x".join(map(str, shape)) or "one number")
    print_table(console, dense)
    files = columns("file", "bytes", "rows", "partitions")
    for file in content.files:
        rows, part = file["rows"], file["partitions"]
        files.add_row(
            file["name"],
            f"{file['nbytes']:,}",
            "" if rows is None else f"{rows:,}",
            "" if part is None else f"{part[0]} to {part[1] - 1} of {part[2]}",
        )
    print_table(console, files)


def _show_head(console: Console, content: Description) -> None:
    labelled(console, "path", content.path)
    labelled(
        console,
        "saved",
        f"{local_time(content.saved_s)} by persia {content.persia_version}, format {content.format_version}",
    )
    into = "" if content.epoch is None else f": {content.epoch:,} epochs and {content.samples_into_epoch:,} samples"
    labelled(console, "position", f"step {content.step:,}, {content.samples:,} samples{into}; seed {content.seed}")
    labelled(console, "model", f"{content.model}, {content.mode}, {content.optimizer} for rows")
    for label in content.progress["calibration"]:
        labelled(console, "calibrated", f"{label['label']} by {correction(label)}")
    labelled(console, "size", f"{size(content.nbytes)}, {content.rows:,} rows")

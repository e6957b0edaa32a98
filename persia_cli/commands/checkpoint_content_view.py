"""Output of `persia checkpoint show` and `diff`: a table on a terminal, else a line of text for each thing."""

from dataclasses import asdict

from rich.console import Console

from persia_cli.checkpoint.comparison import Diff
from persia_cli.checkpoint.description import Description
from persia_cli.commands.checkpoint_view import UNKNOWN, moment
from persia_cli.commands.screen import key_values, labelled, paragraph, say, size
from persia_cli.commands.screen_tables import columns, print_rows
from persia_cli.observe.outcome import correction

SHOWN = 2
"""Number of the most changed rows of a table on a terminal."""


def show_description(console: Console, found: Description) -> None:
    """Print what a checkpoint holds."""
    if not console.is_terminal:
        listed = ("tables", "dense", "files", "progress")
        say(console, key_values({key: value for key, value in asdict(found).items() if key not in listed}))
    else:
        _show_head(console, found)
    table = columns("table", "rows", "dim", "dtype", "group", "bytes", "optimizer", "states")
    for each in found.tables:
        states = UNKNOWN if each.states is None else ", ".join(f"{n} [{k}]" for n, k in each.states.items()) or "none"
        table.add_row(
            each.name,
            f"{each.rows:,}",
            str(each.dim),
            each.dtype,
            str(each.group),
            f"{each.nbytes:,}",
            each.optimizer or UNKNOWN,
            states,
        )
    print_rows(console, table)
    dense = columns("dense", "shape")
    for name, shape in found.dense.items():
        dense.add_row(name, "x".join(map(str, shape)) or "one number")
    print_rows(console, dense)
    files = columns("file", "bytes", "rows", "partitions")
    for file in found.files:
        rows, part = file["rows"], file["partitions"]
        files.add_row(
            file["name"],
            f"{file['nbytes']:,}",
            "" if rows is None else f"{rows:,}",
            "" if part is None else f"{part[0]} to {part[1] - 1} of {part[2]}",
        )
    print_rows(console, files)


def _show_head(console: Console, found: Description) -> None:
    labelled(console, "path", found.path)
    labelled(
        console, "saved", f"{moment(found.saved_s)} by persia {found.persia_version}, format {found.format_version}"
    )
    into = "" if found.epoch is None else f": {found.epoch:,} epochs and {found.samples_into_epoch:,} samples"
    labelled(console, "position", f"step {found.step:,}, {found.samples:,} samples{into}; seed {found.seed}")
    labelled(console, "model", f"{found.model}, {found.mode}, {found.optimizer} for rows")
    for each in found.progress["calibration"]:
        labelled(console, "calibrated", f"{each['label']} by {correction(each)}")
    labelled(console, "size", f"{size(found.nbytes)}, {found.rows:,} rows")


def show_diff(console: Console, found: Diff) -> None:
    """Print what differs between two checkpoints."""
    if console.is_terminal:
        labelled(console, "before", f"{found.before}, step {found.steps[0]:,}")
        labelled(console, "after", f"{found.after}, step {found.steps[1]:,}")
    table = columns(
        "table", "before", "after", "added", "removed", "changed", "equal", "of these used", "mean change", "max change"
    )
    for each in found.tables:
        counts = (each.before, each.after, each.added, each.removed, each.changed, each.equal, each.touched)
        table.add_row(each.name, *(f"{n:,}" for n in counts), f"{each.mean_change:.4g}", f"{each.max_change:.4g}")
    print_rows(console, table)
    for each in found.tables:
        if each.note:
            labelled(console, "note", f"table {each.name}: {each.note}")
    most = columns("most changed", "id", "change", "cosine")
    for each in found.tables:
        for row in each.most_changed[: SHOWN if console.is_terminal else None]:
            cosine = UNKNOWN if row.cosine is None else f"{row.cosine:.4f}"
            most.add_row(each.name, str(row.id), f"{row.change:.4g}", cosine)
    if most.row_count:
        print_rows(console, most)
    dense = columns("dense", "change", "relative", "")
    for tensor in found.dense:
        values = (UNKNOWN if value is None else f"{value:.4g}" for value in (tensor.change, tensor.relative))
        dense.add_row(tensor.name, *values, tensor.note)
    print_rows(console, dense)
    for key, (before, after) in found.settings.items():
        if console.is_terminal:
            paragraph(console, f"{before} -> {after}", f"{key}  ")
        else:
            say(console, key_values({"setting": key, "before": before, "after": after}))

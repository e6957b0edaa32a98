"""Output of `persia checkpoint show`: a table on a terminal, else a line of text for each thing."""

from dataclasses import asdict

from rich.console import Console

from persia_cli.checkpoint.description import Description
from persia_cli.commands.checkpoint_view import UNKNOWN, moment
from persia_cli.commands.screen import key_values, labelled, say, size
from persia_cli.commands.screen_tables import columns, print_rows
from persia_cli.observe.outcome import correction


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

"""The one table of results, the same on a terminal, in a file, and as Markdown."""

from collections.abc import Callable, Sequence

from rich.box import MARKDOWN
from rich.table import Table
from rich.text import Text

from persia_cli.bench.machine import Machine
from persia_cli.bench.result import OURS, Result, Side
from persia_cli.commands.screen import labelled, out, paragraph, size
from persia_cli.commands.tables import columns, print_table

DIFFERENCES = ("AUC", "log loss")
"""Units in which sides differ too little for ratios."""
MORE: dict[str, Callable[[Side], float | None]] = {
    "CPU ms/step": lambda side: sum(side.cpu_ms.values()) or None,
    "stale": lambda side: side.staleness or None,
    "AUC": lambda side: side.auc,
    "AUC spread": lambda side: side.auc_spread,
    "GPU busy": lambda side: side.gpu_busy,
    "others' cores": lambda side: side.busy_cores if side.busy_cores >= 0.05 else None,
}
"""Columns that a table has if one of its sides has a value there."""


def show_machine(machine: Machine) -> None:
    """Print the machine and the versions of libraries."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    labelled(out(), "machine", f"{machine.processor}, {size(machine.memory)}, huge pages: {machine.huge_pages}")
    labelled(out(), "versions", f"Python {machine.python}, {versions}")


def show(results: Sequence[Result], markdown: bool = False) -> None:
    """Print a row for each side of each result, the stages of those that were traced, and all notes."""
    _print(_table(results), markdown)
    stages = columns("stage", "ms/step", "")
    for result in results:
        for stage in result.stages:
            row = f"{result.name}: {stage.replica} {stage.stage}"
            stages.add_row(Text(row), f"{stage.ms:.2f}", "meanwhile" if stage.aside else "")
    if stages.row_count:
        _print(stages, markdown)
    for note in dict.fromkeys(f"{result.name}: {result.note}" for result in results if result.note):
        paragraph(out(), note, style="dim")


def _print(table: Table, markdown: bool) -> None:
    if markdown:
        table.box, table.pad_edge = MARKDOWN, True
    print_table(out(), table)


def _table(results: Sequence[Result]) -> Table:
    sides = [side for result in results for side in result.sides]
    names = {side.name for side in sides}
    others = list(dict.fromkeys(name for side in sides for name in side.ratios if name not in names))
    more = [head for head, value in MORE.items() if any(value(side) is not None for side in sides)]
    table = columns("what", "median", "least", "most", "unit", "ours is", *others, *more)
    table.columns[4].justify = "left"
    for result in results:
        ours = result.sides[0]
        for side in result.sides:
            what = result.name + ("" if side.name == OURS else f": {side.name}") if side is ours else f"  {side.name}"
            table.add_row(
                Text(what),
                *(number(value) for value in (side.median, side.least, side.most)),
                result.unit,
                against(result, side),
                *(number(side.ratios.get(name)) for name in others),
                *(number(MORE[head](side)) for head in more),
            )
    return table


def line(result: Result) -> str:
    """Return a result in one line, which is shown before the table is complete."""
    ratios = [f"{against(result, side)} {side.name}" for side in result.sides[1:]]
    return "; ".join([f"{result.name}: {number(result.sides[0].median)} {result.unit}", *ratios])


def against(result: Result, side: Side) -> str:
    """Return our result as a multiple of a side's, or as more or less than it; nothing for ours itself."""
    ours = result.sides[0]
    if side.name not in ours.ratios:
        return ""
    if result.unit in DIFFERENCES:
        return f"{ours.median - side.median:+.4f}"
    return f"{ours.ratios[side.name]:.3f} x"


def number(value: float | None) -> str:
    """Return a number with four digits or more; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

"""Tables of numbers: the same on a terminal and in a file, and complete on every terminal, however narrow."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from persia_cli.commands.screen import UNBOUNDED, paragraph

_INDENT = 2
_BARS = " ▁▂▃▄▅▆▇█"


def columns(*headers: str) -> Table:
    """Return a table without lines; all columns but the first hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index else "left", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table of numbers with every digit; columns that do not fit a narrow terminal come below the others.

    Each part begins with the first column again. If not even one column fits next to the first, each row becomes a
    list of its numbers.
    """
    room = console.width if console.is_terminal else UNBOUNDED
    units = _units(table)
    if any(_wanted(console, _part(table, [0, *unit])) > room for unit in units) and _wanted(console, table) > room:
        _print_lists(console, table, units)
        return
    parts: list[list[int]] = [[0]]
    for unit in units:
        if len(parts[-1]) > 1 and _wanted(console, _part(table, [*parts[-1], *unit])) > room:
            parts.append([0])
        parts[-1] += unit
    for part in (table if len(parts) == 1 else _part(table, numbers) for numbers in parts):
        options = console.options.update(width=_wanted(console, part))
        console.print(Segments(console.render(part, options)), soft_wrap=True, end="")


def _print_lists(console: Console, table: Table, units: Sequence[Sequence[int]]) -> None:
    """Print each row as its first cell, with a line for each other column below it."""
    width = max(len(str(table.columns[unit[0]].header)) for unit in units)
    for name, rest in _rows(table, units):
        heading = str(table.columns[0].header)
        paragraph(console, name, f"{heading}  " if heading else "", head_style="", style="bold")
        for head, value in rest:
            if value:
                paragraph(console, value, f"{'':<{_INDENT}}{head:<{width}}  ", head_style="")


def _rows(table: Table, units: Sequence[Sequence[int]]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the first cell of each row, and the headers and values of the others."""
    cells = [list(column.cells) for column in table.columns]
    for row in zip(*cells, strict=True):
        texts = [cell.plain if isinstance(cell, Text) else str(cell) for cell in row]
        yield (
            texts[0],
            [
                (str(table.columns[unit[0]].header), " ".join(texts[number] for number in unit if texts[number]))
                for unit in units
            ],
        )


def _units(table: Table) -> list[list[int]]:
    """Return the numbers of the columns after the first; those without a header stay with the one before them."""
    units: list[list[int]] = []
    for number, column in list(enumerate(table.columns))[1:]:
        if column.header or not units:
            units.append([])
        units[-1].append(number)
    return units


def _wanted(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options.update(width=UNBOUNDED), table).maximum


def _part(table: Table, numbers: Sequence[int]) -> Table:
    """Return some columns of a table made by `columns`."""
    part = columns()
    for number in numbers:
        column = table.columns[number]
        part.add_column(column.header, justify=column.justify, no_wrap=True)
    cells = [list(table.columns[number].cells) for number in numbers]
    for row, values in zip(table.rows, zip(*cells, strict=True), strict=True):
        part.add_row(*values, style=row.style)
    return part


def bars(counts: Sequence[int]) -> str:
    """Return one character per count, with a height that grows with the count; a count above 0 is always visible."""
    greatest = max(counts, default=0)
    return "".join(_BARS[math.ceil(count / greatest * (len(_BARS) - 1))] if count else _BARS[0] for count in counts)

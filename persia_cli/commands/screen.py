"""What people see: data on stdout, everything else on stderr, plain text wherever that is not a terminal."""

import json
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from persia_cli.errors import PersiaError

LABEL_WIDTH = 10


@cache
def out() -> Console:
    """Return the console of data: stdout."""
    return Console(highlight=False)


@cache
def err() -> Console:
    """Return the console of everything else: stderr."""
    return Console(stderr=True, highlight=False)


def say(console: Console, text: str | Text, style: str = "") -> None:
    """Print text as it is: no markup, no wrapping that would break what reads it."""
    console.print(text if isinstance(text, Text) else Text(text, style), soft_wrap=True)


def labelled(console: Console, label: str, text: str) -> None:
    """Print one line under a label, labels aligned."""
    if not console.is_terminal:
        say(console, f"{label:<{LABEL_WIDTH}}{text}")
        return
    line = Table.grid()
    line.add_column(width=LABEL_WIDTH, style="bold")
    line.add_column(overflow="fold")
    line.add_row(label, Text(text))
    console.print(line)


def pairs(console: Console, lines: Mapping[str, str]) -> None:
    """Print words and what they mean in two aligned columns."""
    width = max(map(len, lines), default=0)
    for word, text in lines.items():
        say(console, Text.assemble((f"{word:<{width}}", "bold"), f"  {text}"))


def key_values(figures: Mapping[str, Any]) -> str:
    """Return `key=value` words; a text with spaces is quoted, numbers keep every digit, null stays `null`."""
    return " ".join(f"{key}={_word(value)}" for key, value in figures.items())


def _word(value: Any) -> str:
    if isinstance(value, str) and value and not any(c.isspace() or c in "\"'=" for c in value):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def columns(*headers: str) -> Table:
    """Return a table without lines; all columns but the first hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index else "left", no_wrap=True)
    return table


def print_whole(console: Console, table: Table) -> None:
    """Print a table of figures with every digit: where the terminal is narrow, it wraps the lines."""
    wanted = Measurement.get(console, console.options.update(width=1000), table).maximum
    console.print(Segments(console.render(table, console.options.update(width=wanted))), soft_wrap=True, end="")


def count(number: int, noun: str) -> str:
    """Return `1 step` or `12,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(nbytes: float) -> str:
    """Return a number of bytes in the largest fitting binary unit."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while nbytes >= 1000 and len(units) > 1:
        nbytes, units = nbytes / 1024, units[1:]
    return f"{nbytes:.0f} B" if units[0] == "B" else f"{nbytes:.1f} {units[0]}"


def report_failure(error: BaseException, debug: bool) -> int:
    """Print an error, one `error:` line for each of its sentences, and return the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, PersiaError):
        for line in str(error).splitlines():
            say(err(), line if line.startswith(" ") else Text.assemble(("error: ", "bold red"), line))
        return error.exit_code
    hint = "" if debug else "; run again with --debug for the traceback"
    say(err(), Text.assemble(("internal error: ", "bold red"), f"{type(error).__name__}: {error}{hint}"))
    return PersiaError.exit_code

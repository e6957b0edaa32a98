"""The output to the user: data on stdout, all else on stderr; plain text where that is not a terminal."""

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.text import Text

from persia_cli.commands.options import OUTPUT
from persia_cli.disk import refusal
from persia_cli.errors import PersiaError
from persia_cli.storage.remote import without_secret

LABEL_WIDTH = 10
UNBOUNDED = 1000
"""Width assumed where there is no terminal: any table fits."""
NARROW = 20
"""Least width of text next to its head."""
INDENT = 4
"""Indentation of text below its head."""


@cache
def out() -> Console:
    """Return the console for data: stdout."""
    return Console(highlight=False)


@cache
def err() -> Console:
    """Return the console for all else: stderr."""
    return Console(stderr=True, highlight=False, force_terminal=False if OUTPUT.as_json else None)


def say(console: Console, text: str | Text, style: str = "") -> None:
    """Print text without markup, and without wrapping, which would break programs that read it.

    Passwords of URIs are in no text that is printed.
    """
    if (shown := without_secret(str(text), queries=False)) != str(text):
        text = shown
    if OUTPUT.as_json and console is err():
        if plain := str(text).strip():
            console.out(json.dumps({"text": plain}), highlight=False)
        return
    console.print(text if isinstance(text, Text) else Text(text, style), soft_wrap=True)


def say_json(value: Any) -> None:
    """Print a value as one line of JSON on stdout."""
    say(out(), json.dumps(value))


def paragraph(console: Console, text: str | Text, head: str = "", style: str = "", head_style: str = "bold") -> None:
    """Print text next to its head; a terminal wraps it at spaces, indents it, and splits no argument.

    The text comes below a head that leaves too little space.
    """
    body = text if isinstance(text, Text) else Text(text, style)
    room = console.width - len(head)
    if not console.is_terminal or len(body) <= room:
        say(console, Text.assemble((head, head_style), body))
        return
    if head and room < NARROW:
        say(console, head.rstrip(), head_style)
        head = " " * INDENT
        room = console.width - INDENT
    lines = wrap(body.plain, max(room, 1), break_long_words=False, break_on_hyphens=False)
    for line in lines:
        say(console, Text.assemble((head, head_style), (line, body.style)))
        head = " " * len(head)


def labelled(console: Console, label: str, text: str) -> None:
    """Print one line with a label; labels are aligned; a terminal wraps the line at spaces."""
    paragraph(console, text, f"{label:<{LABEL_WIDTH - 1}} ")


def propose(console: Console, command: str) -> None:
    """Print the next command to run, in one line even if it is long, so that it can be copied."""
    say(console, Text.assemble((f"{'next':<{LABEL_WIDTH}}", "bold"), command))


def pairs(console: Console, lines: Mapping[str, str]) -> None:
    """Print terms and their meanings in two aligned columns."""
    width = max(map(len, lines), default=0)
    for word, text in lines.items():
        paragraph(console, text, f"{word:<{width}}  ")


def fitting(parts: Sequence[str], width: int) -> str:
    """Return the first parts that fit a line side by side, without those too long for any line."""
    kept: list[str] = []
    for part in parts:
        if len("  ".join([*kept, part])) > width:
            if kept:
                break
            continue
        kept.append(part)
    return "  ".join(kept)


def size(nbytes: float) -> str:
    """Return a number of bytes in the largest fitting binary unit."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while nbytes >= 1000 and len(units) > 1:
        nbytes, units = nbytes / 1024, units[1:]
    return f"{nbytes:.0f} B" if units[0] == "B" else f"{nbytes:.1f} {units[0]}"


def clock(seconds: int | None) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`, `?` for None."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def report_failure(error: BaseException, debug: bool) -> int:
    """Print an error, one `error:` line for each of its sentences, and return the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    error = refusal(error) or error
    if isinstance(error, PersiaError):
        for line in without_secret(str(error)).splitlines():
            say(err(), line if line.startswith(" ") else Text.assemble(("error: ", "bold red"), line))
        for note in getattr(error, "__notes__", []):
            say(err(), note)
        return error.exit_code
    hint = "" if debug else "; run again with --debug for the traceback"
    say(
        err(),
        Text.assemble(("internal error: ", "bold red"), f"{type(error).__name__}: {without_secret(str(error))}{hint}"),
    )
    return PersiaError.exit_code

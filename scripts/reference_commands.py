"""The reference page of commands, from the command line itself."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from persia_cli.main import app
from scripts.readme import narrowed

HEAD = """# Commands

This page is generated from the command line. `persia COMMAND --help` prints the same. `--debug`, with any command,
shows the traceback of an error. Exit code 0 means success, 2 an error that you can correct, and 1 any other failure.
"""


def page() -> str:
    """Return the page as Markdown."""
    root: Any = get_command(app)
    return "\n".join([HEAD, *_commands("persia", root)]) + "\n"


def _commands(name: str, group: Any) -> Iterator[str]:
    for each, command in group.commands.items():
        if command.hidden:
            continue
        yield from _section(f"{name} {each}", command)
        if hasattr(command, "commands"):
            yield from _commands(f"{name} {each}", command)


def _section(name: str, command: Any) -> Iterator[str]:
    level = "#" * (len(name.split()))
    yield f"{level} {name}\n\n{_text(command.help or '')}\n"
    if hasattr(command, "commands"):
        return
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield "| argument or option | meaning |\n| --- | --- |"
    for param in command.params:
        if record := param.get_help_record(context):
            names = record[0] if param.param_type_name == "option" else record[0].partition(" <")[0]
            yield f"| `{names}` | {_cell(record[1])} |"  # a bar within code does not end a cell
    _, _, examples = (command.epilog or "").partition("Examples:\n")
    yield f"\n```sh\n{narrowed(_text(examples).strip())}\n```\n" if examples else ""


def _text(text: str) -> str:
    return "\n".join(line.strip() for line in text.replace("\b", "").splitlines())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

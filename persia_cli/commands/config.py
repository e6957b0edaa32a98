"""`persia config`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import ConfDir, Words, examples

SHOW = (
    "persia config show conf=criteo",
    "persia config show conf=criteo model=ffnn > mine.yaml  # then: persia train conf=./mine.yaml",
)
LIST = (
    "persia config list",
    "persia config list --keys | grep embedding",
)

app = typer.Typer(no_args_is_help=True, help="Look at configurations.", epilog=examples(*SHOW, *LIST))


@app.command(epilog=examples(*SHOW))
def show(words: Words = None, conf_dir: ConfDir = None) -> None:
    """Print the complete configuration that these words give, as YAML."""
    from persia_cli.commands.screen import out, say
    from persia_cli.config.compose import compose_run
    from persia_cli.config.record import to_yaml

    text = to_yaml(compose_run(words or [], conf_dir or []))
    if out().is_terminal:
        from rich.syntax import Syntax

        out().print(Syntax(text, "yaml", background_color="default"))
    else:
        say(out(), text.rstrip("\n"))


@app.command("list", epilog=examples(*LIST))
def list_(
    all_keys: Annotated[bool, typer.Option("--keys", help="List every key, what it expects and what it does.")] = False,
    conf_dir: ConfDir = None,
) -> None:
    """List the configurations, and the options of each group."""
    from persia_cli.commands.screen import out, pairs
    from persia_cli.config import offers

    if all_keys:
        _list_keys()
        return
    folders = conf_dir or []
    words = {f"conf={name}": file for name, file in offers.primaries(folders).items()}
    for group, options in offers.groups(folders).items():
        words |= {f"{group}={name}": file for name, file in options.items()}
    pairs(out(), {word: _first_comment(file) for word, file in words.items()})


def _list_keys() -> None:
    from persia_cli.commands.screen import out, pairs
    from persia_cli.config.expected import field_expectation, keys
    from persia_cli.config.schema import Run

    lines: dict[str, str] = {}
    for key, field in keys(Run):
        text = f"{field.description} ({field_expectation(field)})"
        lines[key] = f"{lines[key]} | {text}" if key in lines and text not in lines[key] else text
    pairs(out(), lines)


def _first_comment(file: Path) -> str:
    """Return what a configuration file says of itself in its first line."""
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ") if first.startswith("#") else ""

"""The completion of a command line in bash, zsh and fish, from a table, without the libraries that parse it.

The scripts of `persia --install-completion` run persia at each TAB, with the line in the environment. The table has the
commands with their options, and the keys with their values. To read them from the command line and the schema takes a
second, so the first TAB after a change of either writes them to a file, and the others read it.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from persia_cli.config import available
from persia_cli.shipped import PACKAGE

Table = dict[str, Any]
"""`commands`: {command: [number of its arguments before KEY=VALUE or null, options, with a = if they have a value]};
`keys`: {key: values}; `source`: what it was read from."""


def complete(load_app: Callable[[], Any]) -> bool:
    """Print what completes the line; return False for a shell that is not one of the three."""
    table = read_table(load_app)
    shell = os.environ["_PERSIA_COMPLETE"].removeprefix("complete_")
    if shell == "bash":
        print("\n".join(_in_bash(table, os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1])))
    elif shell in ("zsh", "fish"):
        *words, current = os.environ["_TYPER_COMPLETE_ARGS"].split(" ")
        found = candidates(table, [word for word in words if word], current)
        if shell == "zsh":
            print(_in_zsh(found))
        elif os.environ["_TYPER_COMPLETE_FISH_ACTION"] == "get-args":
            print("\n".join(found))
        elif not found:
            sys.exit(1)  # fish completes files then
    return shell in ("bash", "zsh", "fish")


def candidates(table: Table, words: list[str], current: str) -> list[str]:
    """Return what the last word of a line may become; `words` are those before, from the program on."""
    commands = table["commands"]
    path, given, takes_value = "persia", 0, False
    for word in words[1:]:
        if takes_value:
            takes_value = False
        elif word.startswith("-"):
            takes_value = f"{word}=" in commands[path][1] or f"{word}=" in commands["persia"][1]
        elif f"{path} {word}" in commands:
            path = f"{path} {word}"
        else:
            given += 1
    before, options = commands[path]
    below = [name.rpartition(" ")[2] for name in commands if name.rpartition(" ")[0] == path]
    if takes_value:
        found = []
    elif current.startswith("-"):
        found = [option.rstrip("=") for option in dict.fromkeys([*options, *commands["persia"][1]])]
    elif path in ("persia config explain", "persia config list") and not given:
        found = [setting.rstrip("=") for setting in _settings(current, table["keys"]) if setting != "conf="]
    elif below or before is None or given < before:
        found = below
    else:
        found = _settings(current, table["keys"])
    return [candidate for candidate in found if candidate.startswith(current)]


def read_table(load_app: Callable[[], Any]) -> Table:
    """Return the table of the present command line and schema; `load_app` imports the commands."""
    base = os.environ.get("PERSIA_CACHE_DIR") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/persia"
    file = Path(base).expanduser() / "completion.json"
    sources = [path for folder in ("commands", "config/schema") for path in (PACKAGE / folder).glob("*.py")]
    source = [str(PACKAGE), max(path.stat().st_mtime_ns for path in sources)]
    with suppress(OSError, ValueError):
        table: Table = json.loads(file.read_bytes())
        if isinstance(table, dict) and table.get("source") == source:
            return table
    from persia_cli.disk import write_whole
    from persia_cli.errors import DiskError

    table = _new_table(load_app()) | {"source": source}
    with suppress(OSError, DiskError):  # without a place for it, each TAB takes a second
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(table))
    return table


def _new_table(app: Any) -> Table:
    """Read the table from the command line and the schema."""
    from typer.main import get_command

    from persia_cli.config.examples import offered_values
    from persia_cli.config.expected import keys
    from persia_cli.config.schema import Run

    commands: dict[str, tuple[int | None, list[str]]] = {}

    def add(path: str, command: Any) -> None:
        parameters = command.get_params(command.make_context(path, [], resilient_parsing=True))
        arguments = [parameter.name for parameter in parameters if parameter.param_type_name == "argument"]
        options = [
            name if option.is_flag else f"{name}="
            for option in parameters
            if option.param_type_name == "option" and not option.hidden
            for name in option.opts
            if name.startswith("--")
        ]
        commands[path] = arguments.index("overrides") if "overrides" in arguments else None, options
        for name, below in getattr(command, "commands", {}).items():
            if not below.hidden:
                add(f"{path} {name}", below)

    add("persia", get_command(app))
    values: dict[str, dict[str, None]] = {}
    for key, field in keys(Run, members=True):
        values.setdefault(key, {}).update(dict.fromkeys(offered_values(field)))
    return {"commands": commands, "keys": {key: list(found) for key, found in values.items()}}


def _settings(current: str, keys: dict[str, list[str]]) -> list[str]:
    """Return the settings KEY=VALUE that a word may become, or keys, or groups where keys of several are possible."""
    folders = [Path(name).expanduser() for name in os.environ.get("PERSIA_CONF_DIR", "").split(os.pathsep) if name]
    choices = {"conf": list(available.primaries(folders))}
    choices |= {group: list(names) for group, names in available.groups(folders).items()}
    key, equals, _ = current.partition("=")
    if equals:
        return [f"{key}={value}" for value in choices.get(key) or keys.get(key, [])]
    groups = {key.rpartition(".")[0] for key in keys}
    single = [key for key in keys if "NAME" not in key and "[]" not in key and (key not in groups or keys[key])]
    found = [f"{name}=" for name in dict.fromkeys([*choices, *single]) if name.startswith(current)]
    tops = dict.fromkeys(f"{top}." if dot else top for top, dot, _ in (name.partition(".") for name in found))
    return found if len(tops) == 1 else list(tops)


def _in_bash(table: Table, words: list[str]) -> list[str]:
    """Complete a line as bash divides it: an = is a word, and what follows it is completed alone."""
    joined: list[str] = []
    for word in words:
        if joined and not joined[-1].startswith("-") and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    *others, current = joined
    found = candidates(table, others, current)
    if "=" in current and "=" not in words[-1].strip("="):
        return [candidate.partition("=")[2] for candidate in found]
    if len(found) == 1 and found[0].endswith("="):
        # Bash ends the word after a single match, but not after the beginning of several.
        found += candidates(table, others, found[0]) or [f"{found[0]}VALUE"]
    return found


def _in_zsh(found: list[str]) -> str:
    """Return commands for zsh, which ends a word unless told not to; it completes files if there is nothing else."""
    prefixes = [candidate for candidate in found if candidate[-1] in "=."]
    words = [candidate for candidate in found if candidate[-1] not in "=."]
    calls = [f"compadd -S '' -- {_quoted(prefixes)}"] if prefixes else []
    calls += [f"compadd -- {_quoted(words)}"] if words else []
    return "; ".join(calls) or "compset -P '*='; _files"


def _quoted(words: list[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)

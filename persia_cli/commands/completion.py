"""The completion of a command line in bash, zsh and fish, from a table, without the libraries that parse it.

The scripts of `persia --install-completion` run persia at each TAB, with the line in the environment. The table has
the commands with their options, and the keys with an example and values; `python -m scripts.completion` writes it.
"""

import os
import sys
from pathlib import Path

from persia_cli.config import available

TABLE = Path(__file__).with_name("completion.txt")

Rows = dict[str, tuple[str, list[str]]]


def complete() -> bool:
    """Print what completes the line; return False for a shell that is not one of the three."""
    shell = os.environ["_PERSIA_COMPLETE"].removeprefix("complete_")
    if shell == "bash":
        print("\n".join(_in_bash(os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1])))
    elif shell in ("zsh", "fish"):
        *words, current = os.environ["_TYPER_COMPLETE_ARGS"].split(" ")
        found = candidates([word for word in words if word], current)
        if shell == "zsh":
            print(_in_zsh(found))
        elif os.environ["_TYPER_COMPLETE_FISH_ACTION"] == "get-args":
            print("\n".join(found))
        elif not found:
            sys.exit(1)  # fish completes files then
    return shell in ("bash", "zsh", "fish")


def candidates(words: list[str], current: str) -> list[str]:
    """Return what the last word of a line may become; `words` are those before, from the program on."""
    rows = read_table()
    path, given, takes_value = "persia", 0, False
    for word in words[1:]:
        if takes_value:
            takes_value = False
        elif word.startswith("-"):
            takes_value = f"{word}=" in rows[path][1] or f"{word}=" in rows["persia"][1]
        elif f"{path} {word}" in rows:
            path = f"{path} {word}"
        else:
            given += 1
    before, options = rows[path]
    below = [row.rpartition(" ")[2] for row in rows if row.rpartition(" ")[0] == path]
    if takes_value:
        found = []
    elif current.startswith("-"):
        found = [option.rstrip("=") for option in dict.fromkeys([*options, *rows["persia"][1]])]
    elif path in ("persia config explain", "persia config list") and not given:
        found = [each.rstrip("=") for each in _settings(current, rows) if each != "conf="]
    elif below or not before or given < int(before):
        found = below
    else:
        found = _settings(current, rows)
    return [each for each in found if each.startswith(current)]


def read_table() -> Rows:
    """Return {command: (number of its arguments before KEY=VALUE, options)} and {key: (example, values)}."""
    lines = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    return {name: (first, others.split()) for name, first, others in lines}


def _settings(current: str, rows: Rows) -> list[str]:
    """Return the settings KEY=VALUE that a word may become, or keys, or groups where keys of several are possible."""
    folders = [Path(each).expanduser() for each in os.environ.get("PERSIA_CONF_DIR", "").split(os.pathsep) if each]
    choices = {"conf": list(available.primaries(folders))}
    choices |= {group: list(names) for group, names in available.groups(folders).items()}
    key, equals, _ = current.partition("=")
    if equals:
        return [f"{key}={value}" for value in choices.get(key) or rows.get(key, ("", []))[1]]
    groups = {row.rpartition(".")[0] for row in rows}
    keys = [row for row in rows if " " not in row and "NAME" not in row and "[]" not in row and row != "persia"]
    names = [*choices, *(each for each in keys if each not in choices and (each not in groups or rows[each][1]))]
    found = [f"{name}=" for name in names if name.startswith(current)]
    tops = dict.fromkeys(f"{top}." if dot else top for top, dot, _ in (name.partition(".") for name in found))
    return found if len(tops) == 1 else list(tops)


def _in_bash(words: list[str]) -> list[str]:
    """Complete a line as bash divides it: an = is a word, and what follows it is completed alone."""
    joined: list[str] = []
    for word in words:
        if joined and not joined[-1].startswith("-") and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    *others, current = joined
    found = candidates(others, current)
    if "=" in current and "=" not in words[-1].strip("="):
        return [each.partition("=")[2] for each in found]
    if len(found) == 1 and found[0].endswith("="):
        # Bash ends the word after a single match, but not after the beginning of several.
        key = found[0]
        found += candidates(others, key) or [f"{key}{read_table()[key[:-1]][0]}"]
    return found


def _in_zsh(found: list[str]) -> str:
    """Return commands for zsh, which ends a word unless told not to; it completes files if there is nothing else."""
    begun = [each for each in found if each[-1] in "=."]
    ended = [each for each in found if each[-1] not in "=."]
    calls = [f"compadd -S '' -- {_quoted(begun)}"] if begun else []
    calls += [f"compadd -- {_quoted(ended)}"] if ended else []
    return "; ".join(calls) or "compset -P '*='; _files"


def _quoted(words: list[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)

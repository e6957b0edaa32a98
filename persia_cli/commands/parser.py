"""The parser of command lines: commands in groups in `persia --help`, and what it refuses, in sentences."""

import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperGroup

from persia_cli.errors import OrderlyEndError, UserError

GROUPS = {
    "Train": ("train", "resume", "sweep", "plan"),
    "Use": ("eval", "predict", "recommend", "export", "publish", "serve", "rollback"),
    "Look": ("report", "dashboard", "runs", "data", "table", "checkpoint", "config", "recipe"),
    "Operate": ("top", "attach", "stop", "logs", "doctor"),
    "Develop": ("bench", "trace", "launch-role", "keys"),
}
"""Titles, and the commands below each."""


class WholeLines(TyperGroup):
    """Commands whose list has the first sentence of each one's help, and does not cut it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            commands = [(name, command) for name, command in self.commands.items() if not command.hidden]
            formatter.write_dl([(name, command.get_short_help_str(limit=200)) for name, command in commands])


class GroupedCommands(TyperGroup):
    """Commands whose list has a section for each group."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; the end of a job without an error is a sentence and an exit code."""
        try:
            return super().invoke(ctx)
        except OrderlyEndError as ended:
            from persia_cli.commands.screen import err, say

            say(err(), str(ended))
            raise typer.Exit(ended.exit_code) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections, with the first line of each command's help."""
        width = max(len(name) for names in GROUPS.values() for name in names)
        for title, names in GROUPS.items():
            lines = [(f"{name:<{width}}", self.commands[name].get_short_help_str(limit=200)) for name in names]
            with formatter.section(title):
                formatter.write_dl(lines)


FOREIGN = {
    ("-m", "--multirun", "--sweep"): "several values are tried by `persia sweep`: persia sweep KEY=A,B",
    ("--cfg", "-c", "--info", "--resolve"): "the complete configuration is printed by `persia config show`",
    ("--config", "--conf", "--config-name", "-cn", "--config-file"): (
        "a configuration is a word without dashes: conf=NAME or conf=PATH.yaml"
    ),
    ("--config-dir", "--config-path", "-cd", "-cp"): "a folder of configurations is given by --conf-dir DIR",
    ("--output-dir", "--out", "--logdir", "--log-dir", "--save-dir"): "the folder of a run is set by --run-dir DIR",
}
"""Options of other programs, and the equivalent here."""


def as_user_error(error: Exception) -> Exception:
    """Return a UserError in place of an error of the command line parser, which has no public class.

    A command without arguments shows its help, and ends the program with exit code 2. Other errors stay unchanged.
    """
    if not (hasattr(error, "format_message") and hasattr(error, "ctx")):
        return error
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        sys.exit(UserError.exit_code)
    return UserError(_sentence(error))


def refuse_empty(arguments: Sequence[str]) -> None:
    """Raise UserError for an empty argument, which as a path would mean the current folder."""
    for before, argument in pairwise(["", *arguments]):
        option = before if before.startswith("--") else ""
        if argument.startswith("--") and argument.endswith("=") and argument.count("=") == 1:
            option = argument.removesuffix("=")
        elif argument:
            continue
        remedy = f"give it a value or leave {option} out" if option else "give a value or leave it out"
        raise UserError(f"{option or 'an argument'} is empty, perhaps from an unset shell variable; {remedy}")


def _sentence(error: Any) -> str:
    """Return one sentence on a command line that the parser refuses."""
    command = error.ctx.command_path if error.ctx else "persia"
    option = getattr(error, "option_name", None)
    message = error.format_message().strip().rstrip(".")
    help_ = f"`{command} --help` lists the options"
    message, _, near = message.partition(". Did you mean ")
    similar = [name for name in re.findall(r"'([^']+)'", near) if not _is_hidden(error, name)]
    if similar:
        help_ = f"did you mean '{similar[0]}'?"
    elif message.startswith("No such command") and (meant := _command(error)):
        help_ = f"did you mean {meant}?"
    if option is None or not message.startswith("No such option"):
        return f"{message[:1].lower()}{message[1:]}; {help_}"
    hint = next((text for names, text in FOREIGN.items() if option in names), None) or _setting(option)
    near = getattr(error, "possibilities", None)
    if hint is None and near:
        hint = f"did you mean {near[0]}?"
    return f"{option}: {command} has no such option; {hint or help_}"


def _is_hidden(error: Any, name: str) -> bool:
    """Return True for a command that only other commands run."""
    return bool(getattr(getattr(error.ctx.command, "commands", {}).get(name), "hidden", False))


def _command(error: Any) -> str | None:
    """Return the command of this name in another group."""
    name = error.format_message().split("'")[1]
    commands = error.ctx.command.commands
    group = next((group for group in commands if name in getattr(commands[group], "commands", {})), None)
    return group and f"{error.ctx.command_path} {group} {name}"


def _setting(option: str) -> str | None:
    """Return the format of a setting, if the option has the name of one."""
    from persia_cli.config.expected import keys
    from persia_cli.config.schema import Run

    name = option.lstrip("-").replace("-", "_")
    key = next((key for key, _ in keys(Run) if name in (key, key.rpartition(".")[2])), None)
    return f"a setting is a word without dashes: {key}=VALUE" if key and len(name) > 1 else None

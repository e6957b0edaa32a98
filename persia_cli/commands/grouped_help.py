"""The list of commands in `persia --help`, in groups."""

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Train": ("train", "resume", "sweep", "plan"),
    "Use": ("eval", "predict", "recommend", "export", "serve"),
    "Look": ("report", "dashboard", "runs", "data", "table", "checkpoint", "config", "recipe"),
    "Operate": ("top", "attach", "stop", "logs", "doctor"),
    "Develop": ("bench", "trace", "launch-role", "keys"),
}
"""Titles, and the commands below each."""


class GroupedCommands(TyperGroup):
    """Commands whose list has a section for each group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections, with the first line of each command's help."""
        width = max(len(name) for names in GROUPS.values() for name in names)
        for title, names in GROUPS.items():
            lines = [(f"{name:<{width}}", self.commands[name].get_short_help_str(limit=200)) for name in names]
            with formatter.section(title):
                formatter.write_dl(lines)

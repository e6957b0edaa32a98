"""The reports of a child on the screen: a line of progress that is updated in place, all else above it."""

from typing import Any

from persia_cli.commands.progress import ProgressBar, evaluation_notice, notice_of, progress_parts, training_parts
from persia_cli.commands.screen import err, labelled, say

Line = dict[str, Any]
HIDDEN = ("error: ", "internal error: ", "next ")
"""Beginnings of texts that are not shown: errors are raised, and proposals are commands."""
NOTES = ("note", "warning", "advice", "rollback", "unknown", "tables", "rare ids", "failed", "died", "recovered")
"""Labels of what also a short command shows."""


class Display:
    """The progress of a command, in a terminal, a notebook or a file."""

    def __init__(self, is_short: bool = False) -> None:
        """With `is_short`, leave out the plan and the results, which the caller gets."""
        self._is_short = is_short
        self._bar = ProgressBar(err(), "starting")
        self._cell: Any = None

    def __enter__(self) -> "Display":
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def show(self, line: Line) -> None:
        """Show one line that a command reports."""
        kind = line.get("event")
        if kind is None:
            text = str(line.get("text", line))
            if not text.startswith(HIDDEN) and (not self._is_short or text.startswith(NOTES)):
                say(err(), text)
        elif notice := notice_of(line):
            if not self._is_short or notice.label in NOTES:
                labelled(err(), notice.label, notice.text)
        elif kind == "metrics" and not self._is_short:
            if line["split"] == "train":
                self._progress("training", training_parts(line))
            else:
                labelled(err(), *evaluation_notice(line))
        elif kind == "progress":
            self._progress(line.get("doing", "progress"), progress_parts(line))
        elif kind == "waiting":
            self._progress("waiting", [f"{line['doing']}, {line['seconds']} s", line["replica"]])
        elif kind == "compiling" and (err().is_terminal or err().is_jupyter):
            self._progress("compiling", [f"{line['done']}/{line['total']} kernels"])
        elif kind == "phase" and err().is_terminal:
            self._bar.begin(line["phase"])

    def _progress(self, doing: str, parts: list[str]) -> None:
        """Update the line of progress; a file, which has none, gets another line."""
        if err().is_terminal:
            self._bar.begin(doing)
            self._bar.show_parts(parts)
        elif err().is_jupyter:
            content = {"text/plain": f"{doing}  {'  '.join(parts)}"}
            if self._cell is None:
                from IPython.display import display

                self._cell = display(content, raw=True, display_id=True)
            else:
                self._cell.update(content, raw=True)
        else:
            labelled(err(), doing, "  ".join(parts))

"""Runs on the screen: a table on a terminal, else a line of text for each."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from persia_cli.commands.screen import clock, key_values, paragraph, say
from persia_cli.commands.screen_tables import columns, print_whole
from persia_cli.errors import count
from persia_cli.observe.overview import Summary

JUDGED = "metrics: of the evaluation that a run selected itself (stop_early, best_by), else of its best by AUC or RMSE"
"""The line above tables of runs."""


def show_runs(console: Console, found: Sequence[Summary]) -> None:
    """Print one line about each run."""
    if not console.is_terminal:
        for each in found:
            say(console, key_values(_words(each)))
        return
    paragraph(console, JUDGED)
    figures = {"AUC": [each.auc for each in found], "log loss": [each.log_loss for each in found]}
    if any(each.rmse for each in found):
        figures["RMSE"] = [each.rmse for each in found]
    head = ("run", "began", "took", "state", "model", "mode", "step", *figures, "at step", "checkpoints")
    table = columns(*head)
    for number, each in enumerate(found):
        table.add_row(
            each.run_dir,
            "-" if each.began_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(each.began_s)),
            clock(None if each.took_s is None else round(each.took_s)),
            each.state,
            each.model or "-",
            each.mode or "-",
            "-" if each.step is None else f"{each.step:,}",
            *(_scores(column[number]) for column in figures.values()),
            "-" if each.judged_step is None else f"{each.judged_step:,}",
            str(len(each.checkpoints)),
        )
    print_whole(console, table)
    for each in found:
        if each.recoveries:
            paragraph(console, f"{each.run_dir} outlived {count(each.recoveries, 'death')} of a process")
        if each.state in ("failed", "dead", "damaged"):
            paragraph(console, f"{each.run_dir} {each.state}: {each.note}")


def show_side_by_side(
    console: Console, runs: Sequence[Path], settings: Mapping[str, list[str]], figures: Mapping[str, list[str]]
) -> None:
    """Print settings and metrics, with a row for each and a column for each run."""
    if not console.is_terminal:
        for name, values in {**settings, **figures}.items():
            say(
                console, key_values({"name": name} | {str(run): value for run, value in zip(runs, values, strict=True)})
            )
        return
    paragraph(console, JUDGED)
    table = columns("", *map(str, runs))
    for name, values in settings.items():
        table.add_row(name, *values)
    if not settings:
        table.add_row("(no setting differs)", *("" for _ in runs))
    table.add_section()
    for name, values in figures.items():
        table.add_row(name, *values)
    print_whole(console, table)


def _words(summary: Summary) -> dict[str, object]:
    """Return the summary as fields of a line, with the metrics of each label."""
    words = asdict(summary)
    scores = {name: words.pop(name) or {} for name in ("auc", "log_loss", "rmse")}
    words["checkpoints"] = ",".join(map(str, summary.checkpoints))
    labels = {label for by_label in scores.values() for label in by_label}
    for name, by_label in scores.items():
        for label, value in by_label.items():
            words[name if len(labels) == 1 else f"{name}_{label}"] = value
    return words


def _scores(by_label: Mapping[str, float | None] | None) -> str:
    return " / ".join("-" if value is None else f"{value:.4f}" for value in (by_label or {}).values()) or "-"

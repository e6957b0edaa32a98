"""Runs on the screen: a list of them, and two or more side by side."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from persia_cli.commands.screen import clock, paragraph
from persia_cli.commands.tables import columns, print_table
from persia_cli.errors import count
from persia_cli.observe.overview import Summary

JUDGED = "metrics: of the evaluation that a run selected itself (stop_early, best_by), else of its best by AUC or RMSE"
"""The line above tables of runs."""


def show_runs(console: Console, runs: Sequence[Summary]) -> None:
    """Print one line about each run."""
    paragraph(console, JUDGED)
    metrics = {"AUC": [run.auc for run in runs], "log loss": [run.log_loss for run in runs]}
    if any(run.rmse for run in runs):
        metrics["RMSE"] = [run.rmse for run in runs]
    head = ("run", "began", "took", "state", "model", "mode", "step", *metrics, "at step", "checkpoints")
    table = columns(*head)
    for number, run in enumerate(runs):
        table.add_row(
            run.run_dir,
            "-" if run.began_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began_s)),
            clock(None if run.took_s is None else round(run.took_s)),
            run.state,
            run.model or "-",
            run.mode or "-",
            "-" if run.step is None else f"{run.step:,}",
            *(_scores(column[number]) for column in metrics.values()),
            "-" if run.judged_step is None else f"{run.judged_step:,}",
            str(len(run.checkpoints)),
        )
    print_table(console, table)
    for run in runs:
        if run.recoveries:
            paragraph(console, f"{run.run_dir} outlived {count(run.recoveries, 'death')} of a process")
        if run.state in ("failed", "dead", "damaged"):
            paragraph(console, f"{run.run_dir} {run.state}: {run.note}")


def show_side_by_side(
    console: Console, runs: Sequence[Path], settings: Mapping[str, list[str]], metrics: Mapping[str, list[str]]
) -> None:
    """Print settings and metrics, with a row for each and a column for each run."""
    paragraph(console, JUDGED)
    table = columns("", *map(str, runs))
    for name, values in settings.items():
        table.add_row(name, *values)
    if not settings:
        table.add_row("(no setting differs)", *("" for _ in runs))
    table.add_section()
    for name, values in metrics.items():
        table.add_row(name, *values)
    print_table(console, table)


def _scores(by_label: Mapping[str, float | None] | None) -> str:
    return " / ".join("-" if value is None else f"{value:.4f}" for value in (by_label or {}).values()) or "-"

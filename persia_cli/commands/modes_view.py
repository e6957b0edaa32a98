"""`persia bench modes` on the screen."""

import json
from dataclasses import asdict

from persia_cli.bench.machine import BUSY, this_machine
from persia_cli.bench.modes import ModesReport, measure_modes
from persia_cli.commands.screen import columns, err, labelled, out, say
from persia_cli.config.schema import Run


def run_modes(run: Run, delay_ms: float, steps: int, rounds: int, as_json: bool) -> None:
    """Measure and print."""
    note = _silent if as_json else _note
    report = measure_modes(run, delay_ms, steps, rounds, note)
    if as_json:
        told = {"machine": asdict(this_machine()), "name": run.name, "batch_size": run.train.batch_size}
        say(out(), json.dumps(told | asdict(report)))
        return
    show(run, report)
    say(err(), "next: persia bench throughput conf=criteo --compare torch,dense")


def show(run: Run, report: ModesReport) -> None:
    """Print the table of modes and delays, and the bars."""
    labelled(
        out(),
        "measured",
        f"{report.runs} alternating runs of {report.steps} steps of {run.train.batch_size} samples, the first fifth "
        "not counted; medians, AUC a mean",
    )
    labelled(
        out(),
        "delay",
        "one way, on every message to and from embedding workers and servers, all through the same lines (0 ms too): "
        "a look-up crosses four, an update and its answer four",
    )
    table = columns("mode", "delay ms", "samples/s", "keeps", "x sync", "stale", "AUC", "spread")
    for each in report.figures:
        table.add_row(
            each.mode,
            f"{each.delay_ms:g}",
            f"{each.samples_per_s:,.0f}",
            f"{each.keeps:.3f}",
            "-" if each.times_sync is None else f"{each.times_sync:.2f}",
            f"{each.staleness:.1f}",
            "-" if each.auc is None else f"{each.auc:.5f}",
            "-" if each.auc_spread is None else f"{each.auc_spread:.5f}",
        )
    out().print(table)
    for bar in report.bars:
        labelled(
            out(), "bar", f"{bar.what}: {bar.value:.3f}, at least {bar.bar:g}: {'met' if bar.passed else 'missed'}"
        )
    if report.unjudged:
        say(err(), f"nothing was held against its bar: {report.unjudged}")
    if report.busy_cores > BUSY:
        say(err(), f"others used {report.busy_cores:.1f} cores meanwhile: measure again on a quiet machine", "yellow")


def _note(text: str) -> None:
    say(err(), f"{text} …")


def _silent(text: str) -> None:
    """Say nothing."""

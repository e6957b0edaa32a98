"""`persia bench modes` on the screen."""

import json
from dataclasses import asdict

from persia_cli.bench.machine import this_machine
from persia_cli.bench.modes import ModesReport, measure_modes
from persia_cli.commands.bench_notes import noting, warn_of_others
from persia_cli.commands.screen import err, labelled, out, propose, say
from persia_cli.commands.screen_tables import columns, print_rows
from persia_cli.config.schema import Run


def run_modes(run: Run, delay_ms: float, steps: int, rounds: int, as_json: bool) -> None:
    """Measure the modes and print the results."""
    note = noting(as_json)
    report = measure_modes(run, delay_ms, steps, rounds, note)
    if as_json:
        head = {"machine": asdict(this_machine()), "name": run.name, "batch_size": run.train.batch_size}
        say(out(), json.dumps(head | asdict(report)))
        return
    labelled(out(), "machine", this_machine().processor)
    show(run, report)
    propose(err(), "persia bench throughput conf=criteo --compare torch,dense")


def show(run: Run, report: ModesReport) -> None:
    """Print the table of modes and delays, and the targets."""
    labelled(
        out(),
        "measured",
        f"{report.runs} alternating runs of {report.steps} steps of {run.train.batch_size} samples, the first fifth "
        "not counted; medians, AUC a mean",
    )
    labelled(
        out(),
        "delay",
        "one way, on every message to and from embedding workers and servers, all through the same delay lines (at "
        "0 ms too): a look-up crosses four of them, an update with its answer four",
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
    print_rows(out(), table)
    for target in report.targets:
        verdict = "met" if target.passed else "missed"
        labelled(out(), "target", f"{target.what}: {target.value:.3f}, at least {target.at_least:g}: {verdict}")
    if report.unjudged:
        say(err(), f"no figure was compared with its target: {report.unjudged}")
    warn_of_others(report.busy_cores)

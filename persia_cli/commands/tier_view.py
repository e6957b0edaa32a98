"""`persia bench tier` on the screen."""

import json
from dataclasses import asdict

from persia_cli.bench.machine import BUSY, this_machine
from persia_cli.bench.tier import TierReport, measure_tier
from persia_cli.commands.screen import columns, err, labelled, out, say
from persia_cli.config.schema import Run


def run_tier(run: Run, steps: int, rounds: int, ring: int, as_json: bool) -> None:
    """Measure and print."""
    report = measure_tier(run, steps, rounds, ring, _silent if as_json else _note)
    if as_json:
        told = {"machine": asdict(this_machine()), "name": run.name, "batch_size": run.train.batch_size}
        say(out(), json.dumps(told | asdict(report)))
        return
    show(run, report)
    say(err(), "next: persia bench kernels")


def show(run: Run, report: TierReport) -> None:
    """Print speeds, the ratio and where the time went."""
    labelled(
        out(),
        "measured",
        f"{report.rounds} alternating rounds of {report.steps} batches of {run.train.batch_size} samples, medians; "
        f"{report.optimizer}, {report.wire} wire; a client without compute pulls rows and pushes ready gradients",
    )
    table = columns("who", "M ids/s", "least", "most", "CPU ms/batch")
    for side in report.sides:
        speeds = [f"{value / 1e6:.1f}" for value in (side.ids_per_s, side.least, side.most)]
        table.add_row(side.name, *speeds, f"{sum(side.cpu_ms.values()):.2f}")
    for process, ms in report.sides[0].cpu_ms.items():
        table.add_row(f"  {process}", "", "", "", f"{ms:.2f}")
    out().print(table)
    table = columns("stage", "ms/batch", "")
    for stage in report.stages:
        table.add_row(f"{stage.replica} {stage.stage}", f"{stage.ms:.2f}", "meanwhile" if stage.aside else "")
    out().print(table)
    if report.ratio is not None:
        bar = "" if report.bar is None else f", at least {report.bar:g}: {'met' if report.passed else 'missed'}"
        labelled(out(), "ratio", f"{report.ratio:.2f} x FBGEMM at its faster number of threads{bar}")
    if report.busy_cores > BUSY:
        say(err(), f"others used {report.busy_cores:.1f} cores meanwhile: measure again on a quiet machine", "yellow")


def _note(text: str) -> None:
    say(err(), f"{text} …")


def _silent(text: str) -> None:
    """Say nothing."""

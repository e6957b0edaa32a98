"""`persia bench tier` on the screen."""

import json
from dataclasses import asdict

from persia_cli.bench.machine import this_machine
from persia_cli.bench.tier import TierReport, measure_tier
from persia_cli.commands.bench_notes import noting, warn_of_others
from persia_cli.commands.screen import err, labelled, out, propose, say
from persia_cli.commands.screen_tables import columns, print_rows
from persia_cli.config.schema import Run


def run_tier(run: Run, steps: int, rounds: int, ring: int, as_json: bool) -> None:
    """Measure the tier and print the results."""
    report = measure_tier(run, steps, rounds, ring, noting(as_json))
    if as_json:
        head = {"machine": asdict(this_machine()), "name": run.name, "batch_size": run.train.batch_size}
        say(out(), json.dumps(head | asdict(report)))
        return
    labelled(out(), "machine", this_machine().processor)
    show(run, report)
    propose(err(), "persia bench kernels")


def show(run: Run, report: TierReport) -> None:
    """Print speeds, their ratio and the stages of the time."""
    labelled(
        out(),
        "measured",
        f"{report.rounds} alternating rounds of {report.steps} batches of {run.train.batch_size} samples, medians; "
        f"{report.optimizer}, {report.wire} wire; a client without a network pulls rows and pushes prepared gradients",
    )
    table = columns("who", "M ids/s", "least", "most", "CPU ms/batch")
    for side in report.sides:
        speeds = [f"{value / 1e6:.1f}" for value in (side.ids_per_s, side.least, side.most)]
        table.add_row(side.name, *speeds, f"{sum(side.cpu_ms.values()):.2f}")
    for process, ms in report.sides[0].cpu_ms.items():
        table.add_row(f"  {process}", "", "", "", f"{ms:.2f}")
    print_rows(out(), table)
    table = columns("stage", "ms/batch", "")
    for stage in report.stages:
        table.add_row(f"{stage.replica} {stage.stage}", f"{stage.ms:.2f}", "meanwhile" if stage.aside else "")
    print_rows(out(), table)
    if report.ratio is not None:
        verdict = "met" if report.passed else "missed"
        target = "" if report.target is None else f", at least {report.target:g}: {verdict}"
        labelled(out(), "ratio", f"{report.ratio:.2f} x FBGEMM at its faster number of threads{target}")
    warn_of_others(report.busy_cores)

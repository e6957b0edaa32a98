"""`persia bench throughput --compare` on the screen: a table on a terminal, a line each elsewhere, or JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from persia_cli.bench.compare import Comparison, Source, compare
from persia_cli.bench.machine import BUSY, this_machine
from persia_cli.commands.screen import columns, err, labelled, out, say
from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.data.source import uses_stand_in
from persia_cli.errors import UserError

SOURCES: dict[str, tuple[Source, ...]] = {"ring": ("ring",), "loader": ("loader",), "both": ("ring", "loader")}
SHARED = {
    "ring": "all read the same batches, which repeat from memory: the job's loader keeps them and sends them on, "
    "rivals find them prepared in their own memory",
    "loader": "the job's loader reads the data set; rivals get the same batches from a process that reads beside them",
}


def run_comparison(
    run: Run, rivals: Sequence[str], source: str, steps: int, rounds: int, ring: int, as_json: bool
) -> None:
    """Measure and print; raises UserError for an unknown source of batches."""
    if source not in SOURCES:
        raise UserError(f"--source is {source!r}; it is one of {', '.join(SOURCES)}")
    note = _silent if as_json else _note
    comparisons = []
    dataset = run.dataset
    if not as_json and isinstance(dataset, ParquetDataset) and uses_stand_in(dataset):
        say(err(), f"STAND-IN DATA: there are no files at {dataset.path}; samples of the same shape are made up")
    for comparison in compare(run, rivals, SOURCES[source], steps, rounds, ring, note):
        comparisons.append(comparison)
        if not as_json:
            show(run, comparison)
    if as_json:
        told = {"machine": asdict(this_machine()), "name": run.name, "batch_size": run.train.batch_size}
        told |= {"threads": run.train.threads, "sources": [asdict(each) for each in comparisons]}
        say(out(), json.dumps(told))
        return
    say(err(), "next: persia bench modes --delay-ms 5")


def show(run: Run, comparison: Comparison) -> None:
    """Print what came of one source of batches."""
    rounds = f"{comparison.rounds} alternating rounds of {comparison.steps} steps of {run.train.batch_size} samples"
    threads = f"{run.train.threads} torch thread{'s' if run.train.threads > 1 else ''}"
    labelled(out(), "source", f"{comparison.source}: {SHARED[comparison.source]}")
    labelled(out(), "measured", f"{rounds}, {threads}, {run.mode.kind}, staleness {comparison.staleness:.1f}; medians")
    ratios = {ratio.rival: ratio for ratio in comparison.ratios}
    table = columns("who", "samples/s", "least", "most", "ours is", "bar", "", "others' cores")
    for side in comparison.sides:
        ratio = ratios.get(side.name)
        told = ("", "", "")
        if ratio is not None:
            bar = "" if ratio.bar is None else f">= {ratio.bar:g}"
            told = (f"{ratio.ratio:.3f} x", bar, {True: "met", False: "missed", None: ""}[ratio.passed])
        speeds = [f"{value:,.0f}" for value in (side.samples_per_s, side.least, side.most)]
        table.add_row(side.name, *speeds, *told, f"{side.busy_cores:.1f}")
    out().print(table)
    table = columns("process", "CPU ms/step")
    for side in comparison.sides:
        for process, ms in side.cpu_ms.items():
            table.add_row(process if process.count("-") else f"{side.name} {process}", f"{ms:.2f}")
    out().print(table)
    table = columns("stage", "ms/step", "")
    for stage in comparison.stages:
        table.add_row(f"{stage.replica} {stage.stage}", f"{stage.ms:.2f}", "meanwhile" if stage.aside else "")
    out().print(table)
    table = columns("on the wire", "bytes/sample")
    for hop in comparison.hops:
        table.add_row(hop.hop, f"{hop.bytes_per_sample:,.0f}")
    table.add_row("all", f"{sum(hop.bytes_per_sample for hop in comparison.hops):,.0f}")
    out().print(table)
    labelled(out(), "limit", comparison.bottleneck)
    busy = max(side.busy_cores for side in comparison.sides)
    if busy > BUSY:
        say(err(), f"others used up to {busy:.1f} cores meanwhile: measure again on a quiet machine", "yellow")


def _note(text: str) -> None:
    say(err(), f"{text} …")


def _silent(text: str) -> None:
    """Say nothing."""

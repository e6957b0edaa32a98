"""`persia bench throughput --compare` on the screen: a table on a terminal, a line each elsewhere, or JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from persia_cli.bench.compare import Comparison, Source, compare
from persia_cli.bench.machine import this_machine
from persia_cli.commands.bench_notes import noting, warn_of_others
from persia_cli.commands.describe import warn_of_slow_precision
from persia_cli.commands.screen import err, labelled, out, propose, say
from persia_cli.commands.screen_tables import columns, print_rows
from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.data.source import uses_stand_in
from persia_cli.errors import UserError

SOURCES: dict[str, tuple[Source, ...]] = {"ring": ("ring",), "loader": ("loader",), "both": ("ring", "loader")}
SHARED = {
    "ring": "all read the same batches, which repeat from memory: the job's loader keeps them and sends them on, "
    "the baselines have them prepared in their own memory",
    "loader": "the job's loader reads the data set; the baselines get the same batches from a second process, which "
    "reads it",
}


def run_comparison(
    run: Run, baselines: Sequence[str], source: str, steps: int, rounds: int, ring: int, as_json: bool
) -> None:
    """Measure and print the results; raises UserError for an unknown source of batches."""
    if source not in SOURCES:
        raise UserError(f"--source={source}: expected one of {', '.join(SOURCES)}")
    note = noting(as_json)
    comparisons = []
    dataset = run.dataset
    if not as_json and isinstance(dataset, ParquetDataset) and uses_stand_in(dataset):
        say(err(), f"STAND-IN DATA: there are no files at {dataset.place}; the samples are generated")
    if not as_json:
        labelled(out(), "machine", this_machine().processor)
        warn_of_slow_precision(run)
    for comparison in compare(run, baselines, SOURCES[source], steps, rounds, ring, note):
        comparisons.append(comparison)
        if not as_json:
            show(run, comparison)
    if as_json:
        head = {"machine": asdict(this_machine()), "name": run.name, "batch_size": run.train.batch_size}
        head |= {"threads": run.train.threads, "sources": [asdict(each) for each in comparisons]}
        say(out(), json.dumps(head))
        return
    propose(err(), "persia bench modes --delay-ms 5")


def show(run: Run, comparison: Comparison) -> None:
    """Print the results with one source of batches."""
    rounds = f"{comparison.rounds} alternating rounds of {comparison.steps} steps of {run.train.batch_size} samples"
    threads = f"{run.train.threads} torch thread{'s' if run.train.threads > 1 else ''}"
    labelled(out(), "source", f"{comparison.source}: {SHARED[comparison.source]}")
    labelled(out(), "measured", f"{rounds}, {threads}, {run.mode.kind}, staleness {comparison.staleness:.1f}; medians")
    ratios = {ratio.baseline: ratio for ratio in comparison.ratios}
    on_gpu = any(side.gpu_busy is not None for side in comparison.sides)
    table = columns(
        "who", "samples/s", "least", "most", "ours is", "target", "", "others' cores", *(["GPU busy"] if on_gpu else [])
    )
    for side in comparison.sides:
        ratio = ratios.get(side.name)
        against = ("", "", "")
        if ratio is not None:
            target = "" if ratio.target is None else f">= {ratio.target:g}"
            against = (f"{ratio.ratio:.3f} x", target, {True: "met", False: "missed", None: ""}[ratio.passed])
        busy = [f"{side.gpu_busy or 0.0:.0%}"] if on_gpu else []
        speeds = [f"{value:,.0f}" for value in (side.samples_per_s, side.least, side.most)]
        table.add_row(side.name, *speeds, *against, f"{side.busy_cores:.1f}", *busy)
    print_rows(out(), table)
    table = columns("process", "CPU ms/step")
    for side in comparison.sides:
        for process, ms in side.cpu_ms.items():
            table.add_row(process if process.count("-") else f"{side.name} {process}", f"{ms:.2f}")
    print_rows(out(), table)
    table = columns("stage", "ms/step", "")
    for stage in comparison.stages:
        table.add_row(f"{stage.replica} {stage.stage}", f"{stage.ms:.2f}", "meanwhile" if stage.aside else "")
    print_rows(out(), table)
    table = columns("on the wire", "bytes/sample")
    for hop in comparison.hops:
        table.add_row(hop.hop, f"{hop.bytes_per_sample:,.0f}")
    table.add_row("all", f"{sum(hop.bytes_per_sample for hop in comparison.hops):,.0f}")
    print_rows(out(), table)
    labelled(out(), "limit", comparison.bottleneck)
    warn_of_others(max(side.busy_cores for side in comparison.sides))

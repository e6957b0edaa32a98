"""Benchmarks on the screen: tables, or one JSON object."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from persia_cli.bench.capacity import CapacityResult, size_text
from persia_cli.bench.machine import BUSY, this_machine
from persia_cli.bench.result import Result
from persia_cli.commands.screen import err, labelled, out, paragraph, say, say_json, size
from persia_cli.commands.tables import columns, print_table
from persia_cli.config.schema import Run
from persia_cli.cost.model import TERMS
from persia_cli.errors import count

if TYPE_CHECKING:
    from pathlib import Path

    from persia_cli.bench.delay_line import NetworkLink
    from persia_cli.bench.throughput import Throughput
    from persia_cli.cost.measurements import Measurements

SOURCES = {
    "ring": "all read the same batches, which repeat from memory: the job's loader keeps them and sends them on, "
    "the baselines have them prepared in their own memory",
    "loader": "the job's loader reads the data set; the baselines get the same batches from a second process, which "
    "reads it",
}
DELAY = (
    "one way, on every message to and from embedding workers and servers, all through the same delay lines (at 0 ms "
    "too): a look-up crosses four of them, an update with its answer four; a bandwidth is that of each of these roles"
)


class Disturbed(Protocol):
    """A measurement that other processes may have disturbed."""

    @property
    def busy_cores(self) -> float:
        """Cores that they used meanwhile."""


def noting(as_json: bool) -> Callable[[str], None]:
    """Return a function that prints the current measurement; with JSON output it prints nothing."""
    return (lambda text: None) if as_json else (lambda text: say(err(), f"{text} …"))


def print_json(benchmark: str, results: Iterable[Result | CapacityResult], quick: bool, run: Run | None = None) -> None:
    """Print the results with all that `python -m scripts.measure targets` needs to judge them."""
    head: dict[str, Any] = {"benchmark": benchmark, "quick": quick, "machine": asdict(this_machine())}
    if run is not None:
        head["run"] = run.model_dump(mode="json")
    say_json(head | {"results": [asdict(result) for result in results]})


def show_machine() -> None:
    """Print the processor of this machine."""
    labelled(out(), "machine", this_machine().processor)


def warn_of_others(results: Iterable[Disturbed]) -> None:
    """Print a warning if other programs used the processor meanwhile."""
    cores = max((result.busy_cores for result in results), default=0.0)
    if cores > BUSY:
        text = f"other programs used up to {cores:.1f} cores meanwhile: measure again on an idle machine"
        paragraph(err(), text, style="yellow")


def show_throughput(measured: "Throughput") -> None:
    """Print the speed of a job and the cost of each role."""
    labelled(out(), "samples/s", f"{measured.samples_per_s:,.0f}")
    labelled(out(), "measured", f"{measured.samples:,} samples in {measured.steps} steps, {measured.seconds:.2f} s")
    table = columns("replica", "CPU seconds", "per million samples", "memory")
    for role in measured.roles:
        per_million = role.cpu_s / measured.samples * 1e6
        table.add_row(role.replica, f"{role.cpu_s:.2f}", f"{per_million:.2f}", size(role.rss))
    print_table(out(), table)


def show_comparison(run: Run, result: Result) -> None:
    """Print a job together with its baselines, with one source of batches."""
    ours = result.sides[0]
    labelled(out(), "source", f"{result.case}: {SOURCES[result.case]}")
    labelled(
        out(),
        "measured",
        f"{result.rounds} alternating rounds of {result.steps} steps of {run.train.batch} samples, "
        f"{count(run.train.threads, 'torch thread')}, {run.mode.kind}, staleness {ours.staleness:.1f}; medians",
    )
    on_gpu = any(side.gpu_busy is not None for side in result.sides)
    gpu = ["GPU busy"] if on_gpu else []
    table = columns("who", "samples/s", "least", "most", "ours is", "others' cores", *gpu)
    for side in result.sides:
        speeds = [f"{speed:,.0f}" for speed in (side.median, side.least, side.most)]
        ratio = f"{ours.ratios[side.name]:.3f} x" if side.name in ours.ratios else ""
        busy = [f"{side.gpu_busy or 0.0:.0%}"] if on_gpu else []
        table.add_row(side.name, *speeds, ratio, f"{side.busy_cores:.1f}", *busy)
    print_table(out(), table)
    table = columns("process", "CPU ms/step")
    for side in result.sides:
        for process, ms in side.cpu_ms.items():
            table.add_row(process if process.count("-") else f"{side.name} {process}", f"{ms:.2f}")
    print_table(out(), table)
    table = columns("stage", "ms/step", "")
    for stage in result.stages:
        table.add_row(f"{stage.replica} {stage.stage}", f"{stage.ms:.2f}", "meanwhile" if stage.aside else "")
    print_table(out(), table)
    table = columns("on the wire", "bytes/sample")
    for hop in result.hops:
        table.add_row(hop.hop, f"{hop.bytes_per_sample:,.0f}")
    table.add_row("all", f"{sum(hop.bytes_per_sample for hop in result.hops):,.0f}")
    print_table(out(), table)
    labelled(out(), "limit", result.bottleneck)
    warn_of_others([result])


def show_modes(run: Run, results: "Mapping[NetworkLink, Result]") -> None:
    """Print the table of modes and links."""
    first = next(iter(results.values()))
    labelled(
        out(),
        "measured",
        f"{first.rounds} alternating runs of {first.steps} steps of {run.train.batch} samples, the first fifth "
        "not counted; medians, AUC a mean",
    )
    labelled(out(), "delay", DELAY)
    table = columns("mode", "link", "samples/s", "keeps", "x sync", "stale", "AUC", "spread")
    for link, result in results.items():
        for side in result.sides:
            keeps, times_sync = side.ratios.values()
            table.add_row(
                side.name,
                link.label,
                f"{side.median:,.0f}",
                f"{keeps:.3f}",
                f"{times_sync:.2f}",
                f"{side.staleness:.1f}",
                "-" if side.auc is None else f"{side.auc:.5f}",
                "-" if side.auc_spread is None else f"{side.auc_spread:.5f}",
            )
    print_table(out(), table)
    warn_of_others(results.values())


def show_capacity(result: CapacityResult) -> None:
    """Print a row for each size of the model."""
    labelled(
        out(),
        "measured",
        f"{result.rounds} alternating rounds of {result.steps} steps of {result.batch_size} samples after one that "
        f"fills the memory, medians; dim {result.dim}, Zipf {result.zipf:g}",
    )
    labelled(out(), "memory", f"{size(result.budget)} for rows and index of all servers: {result.capacity:,} rows")
    exceeding = result.exceeding()
    smallest = size_text(exceeding[0].parameters)
    speeds = columns("parameters", "ids", "samples/s", "least", "most", f"is x {smallest}", "CPU ms/step")
    memory = columns(
        "parameters", "ids hit", "look-ups hit", "rows", "evicted", "memory", "of budget", "AUC", "possible"
    )
    for model in result.sizes:
        side = model.side
        speeds.add_row(
            size_text(model.parameters),
            f"{model.ids:,}",
            *(f"{rate:,.0f}" for rate in (side.median, side.least, side.most)),
            "" if model.ratio is None else f"{model.ratio:.3f}",
            f"{sum(side.cpu_ms.values()):.1f}",
        )
        memory.add_row(
            size_text(model.parameters),
            f"{model.hit_rate:.1%}",
            f"{model.look_up_hit_rate:.1%}",
            f"{model.rows:,}",
            f"{model.evicted:,}",
            size(model.memory),
            f"{model.memory / result.budget:.1%}",
            f"{side.auc:.4f}",
            f"{model.best_auc:.4f}",
        )
    print_table(out(), speeds)
    print_table(out(), memory)
    partly = [size_text(model.parameters) for model in exceeding if not model.was_full]
    if partly:
        text = f"memory was not full before the measured turns ({', '.join(partly)}): lower embedding.memory, or raise"
        paragraph(out(), f"{text} --steps", style="yellow")
    warn_of_others([result])


def show_costs(path: "Path", measured: "Measurements") -> None:
    """Print the CPU time of each role in the measured steps, and the fitted costs."""
    labelled(out(), "machine", measured.machine.processor)
    table = columns("configuration", *(f"{role} ms" for role in TERMS), "samples/s", "others' cores")
    for step in measured.steps:
        cpu = [f"{step.cpu_s[role] * 1e3:.2f}" for role in TERMS]
        table.add_row(step.name, *cpu, f"{step.samples_per_s:,.0f}", f"{step.busy_cores:.1f}")
    print_table(out(), table)
    table = columns("cost", "ns")
    for role, costs in measured.costs().items():
        for term, seconds in costs.items():
            table.add_row(f"{role}, each of {term.replace('_', ' ')}", f"{seconds * 1e9:.4g}")
    print_table(out(), table)
    labelled(err(), "written", str(path))

"""Benchmarks on the screen: tables, or one JSON object."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from persia_cli.bench.machine import BUSY, this_machine
from persia_cli.bench.result import Result, Side
from persia_cli.commands.screen import err, labelled, out, paragraph, say, size
from persia_cli.commands.tables import columns, print_table
from persia_cli.config.schema import Run
from persia_cli.errors import count

if TYPE_CHECKING:
    from persia_cli.bench.capacity import CapacityResult
    from persia_cli.bench.delay_line import NetworkLink
    from persia_cli.bench.serving import ServingPlan, ServingSpeed
    from persia_cli.bench.throughput import Throughput

SHARED = {
    "ring": "all read the same batches, which repeat from memory: the job's loader keeps them and sends them on, "
    "the baselines have them prepared in their own memory",
    "loader": "the job's loader reads the data set; the baselines get the same batches from a second process, which "
    "reads it",
}
DELAY = (
    "one way, on every message to and from embedding workers and servers, all through the same delay lines (at 0 ms "
    "too): a look-up crosses four of them, an update with its answer four; a bandwidth is that of each of these roles"
)


def noting(as_json: bool) -> Callable[[str], None]:
    """Return a function that prints the current measurement; with JSON output it prints nothing."""
    return (lambda text: None) if as_json else (lambda text: say(err(), f"{text} …"))


def print_json(
    benchmark: str, results: "Iterable[Result | CapacityResult]", quick: bool, run: Run | None = None, **more: Any
) -> None:
    """Print the results with all that `python -m scripts.measure targets` needs to judge them."""
    head: dict[str, Any] = {"benchmark": benchmark, "quick": quick, "machine": asdict(this_machine()), **more}
    if run is not None:
        head |= {"run": run.model_dump(mode="json")}
    say(out(), json.dumps(head | {"results": [asdict(result) for result in results]}))


def warn_of_others(results: "Iterable[Result | CapacityResult]") -> None:
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
    labelled(out(), "source", f"{result.case}: {SHARED[result.case]}")
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
        ratio = f"{ours.ratios[side.name]:.3f} x" if side.name in ours.ratios else ""
        busy = [f"{side.gpu_busy or 0.0:.0%}"] if on_gpu else []
        table.add_row(side.name, *_speeds(side, 1, ",.0f"), ratio, f"{side.busy_cores:.1f}", *busy)
    print_table(out(), table)
    table = columns("process", "CPU ms/step")
    for side in result.sides:
        for process, ms in side.cpu_ms.items():
            table.add_row(process if process.count("-") else f"{side.name} {process}", f"{ms:.2f}")
    print_table(out(), table)
    print_table(out(), _stages(result, "ms/step"))
    table = columns("on the wire", "bytes/sample")
    for hop in result.hops:
        table.add_row(hop.hop, f"{hop.bytes_per_sample:,.0f}")
    table.add_row("all", f"{sum(hop.bytes_per_sample for hop in result.hops):,.0f}")
    print_table(out(), table)
    labelled(out(), "limit", result.bottleneck)
    warn_of_others([result])


def show_tier(run: Run, result: Result) -> None:
    """Print speeds of the embedding tier, their ratio and the stages of the time."""
    labelled(
        out(),
        "measured",
        f"{result.rounds} alternating rounds of {result.steps} batches of {run.train.batch} samples, medians; "
        f"{run.optimizer.embedding.kind}, {run.embedding.wire} wire; a client without a network pulls rows and pushes "
        "prepared gradients",
    )
    table = columns("who", "M ids/s", "least", "most", "CPU ms/batch")
    for side in result.sides:
        table.add_row(side.name, *_speeds(side, 1e6, ".1f"), f"{sum(side.cpu_ms.values()):.2f}")
    for process, ms in result.sides[0].cpu_ms.items():
        table.add_row(f"  {process}", "", "", "", f"{ms:.2f}")
    print_table(out(), table)
    print_table(out(), _stages(result, "ms/batch"))
    ratios = result.sides[0].ratios
    if ratios:
        labelled(out(), "ratio", f"{min(ratios.values()):.2f} x FBGEMM at its faster number of threads")
    warn_of_others([result])


def show_serving(plan: "ServingPlan", measured: "ServingSpeed") -> None:
    """Print speeds and latencies of a server and of its network alone."""
    labelled(out(), "model", measured.model)
    labelled(out(), "requests", measured.requests)
    labelled(
        out(),
        "measured",
        f"{plan.rounds} alternating rounds of {plan.seconds:g} s, {count(plan.workers, 'worker')}; "
        f"medians, and latencies of all rounds",
    )
    table = columns(
        "load", "candidates/s", "offered/s", "requests/s", "p50 ms", "p99 ms", "p99.9 ms", "503", "errors", "is"
    )
    for result in measured.results:
        for side in result.sides:
            times = [_time(side.latency_ms.get(name)) for name in ("p50", "p99", "p999")]
            refused = [f"{side.busy:,}", f"{side.errors:,}"] if side.latency_ms else ["", ""]
            ratio = "".join(f"{ratio:.3f} x {name}" for name, ratio in side.ratios.items())
            name = result.name if side.latency_ms else f"  {side.name}"
            rate = f"{side.requests_per_s or 0.0:,.1f}"
            offered = "" if side.offered_per_s is None else f"{side.offered_per_s:,.1f}"
            table.add_row(name, f"{side.median:,.0f}", offered, rate, *times, *refused, ratio)
    print_table(out(), table)
    before, after = measured.private_bytes
    labelled(out(), "memory", f"{size(before)} of the workers' own before the last loads, {size(after)} after them")
    for result in measured.results:
        if result.note:
            paragraph(out(), f"{result.name}: {result.note}", style="yellow")
    warn_of_others(measured.results)


def _time(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.2f}"


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


def _speeds(side: Side, per: float, form: str) -> list[str]:
    return [format(value / per, form) for value in (side.median, side.least, side.most)]


def _stages(result: Result, unit: str) -> Table:
    table = columns("stage", unit, "")
    for stage in result.stages:
        table.add_row(f"{stage.replica} {stage.stage}", f"{stage.ms:.2f}", "meanwhile" if stage.aside else "")
    return table


def show_capacity(result: "CapacityResult") -> None:
    """Print a row for each size of the model."""
    labelled(
        out(),
        "measured",
        f"{result.rounds} alternating rounds of {result.steps} steps of {result.batch_size} samples after one that "
        f"fills the memory, medians; dim {result.dim}, Zipf {result.zipf:g}",
    )
    labelled(out(), "memory", f"{size(result.budget)} for rows and index of all servers: {result.capacity:,} rows")
    from persia_cli.bench.sizes import size_in_words

    exceeding = result.exceeding()
    smallest = size_in_words(exceeding[0].parameters)
    table = columns("parameters", "ids", "samples/s", "least", "most", f"is x {smallest}", "CPU ms/step")
    for model_size in result.sizes:
        side = model_size.side
        table.add_row(
            size_in_words(model_size.parameters),
            f"{model_size.ids:,}",
            *(f"{rate:,.0f}" for rate in (side.median, side.least, side.most)),
            "" if model_size.ratio is None else f"{model_size.ratio:.3f}",
            f"{sum(side.cpu_ms.values()):.1f}",
        )
    print_table(out(), table)
    table = columns(
        "parameters", "ids hit", "look-ups hit", "rows", "evicted", "memory", "of budget", "AUC", "possible"
    )
    for model_size in result.sizes:
        table.add_row(
            size_in_words(model_size.parameters),
            f"{model_size.hit_rate:.1%}",
            f"{model_size.look_up_hit_rate:.1%}",
            f"{model_size.rows:,}",
            f"{model_size.evicted:,}",
            size(model_size.memory),
            f"{model_size.memory / result.budget:.1%}",
            f"{model_size.side.auc:.4f}",
            f"{model_size.best_auc:.4f}",
        )
    print_table(out(), table)
    partly = [size_in_words(model_size.parameters) for model_size in exceeding if not model_size.was_full]
    if partly:
        text = f"memory was not full before the measured turns ({', '.join(partly)}): lower embedding.memory, or raise"
        paragraph(out(), f"{text} --steps", style="yellow")
    warn_of_others([result])


def show_scaling(run: Run, results: Sequence[Result], cores: int) -> None:
    """Print a row for each number of replicas of each role."""
    from persia_cli.bench.scaling import LINEAR, ROLES, SPEED_UP, cpu_us_per_sample

    first = results[0]
    labelled(
        out(),
        "measured",
        f"{first.rounds} alternating rounds of {first.steps} steps of {run.train.batch} samples, medians; one "
        "replica of each other role, each pinned to a processor",
    )
    table = columns("role", "replicas", "samples/s", "speed-up", "of linear", *(f"{role} CPU us" for role in ROLES))
    for result in results:
        for side in result.sides:
            table.add_row(
                result.case,
                side.name,
                f"{side.median:,.0f}",
                f"{side.ratios[SPEED_UP]:.3f}",
                f"{side.ratios[LINEAR]:.3f}",
                *(f"{cpu_us_per_sample(side, role, run.train.batch):.2f}" for role in ROLES),
            )
    print_table(out(), table)
    labelled(out(), "CPU us", "CPU time per sample of all replicas of the role, in microseconds")
    most = max(int(side.name) for side in first.sides)
    if len(ROLES) - 1 + most > cores:
        text = f"{len(ROLES) - 1 + most} replicas share {cores} processors, so speed-ups are not those of as many"
        paragraph(out(), f"{text} machines: compare the CPU time per sample", style="yellow")
    warn_of_others(results)

"""`persia bench`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from persia_cli.commands.options import AsJson, ConfDir, Overrides, examples

if TYPE_CHECKING:
    from persia_cli.config.schema import Run

EXAMPLES = examples(
    "persia bench throughput conf=synthetic",
    "persia bench modes conf=criteo --delay-ms 5",
)
THROUGHPUT_EXAMPLES = examples(
    "persia bench throughput conf=synthetic",
    "persia bench throughput conf=criteo cluster.embedding_servers=2 --steps 500 --json",
    "persia bench throughput conf=criteo train.batch_size=4096 optimizer=adagrad --compare torch,dense",
)
MODES_EXAMPLES = examples(
    "persia bench modes conf=synthetic --delay-ms 5",
    "persia bench modes conf=synthetic --delay-ms 5 --mbit 100  # as if on several machines with slow networks",
    "persia bench modes conf=criteo mode.staleness=8 --delay-ms 5 --steps 1000 --json",
    "persia bench modes conf=criteo train.batch_size=256 mode.staleness=8 --hosts",
)
CAPACITY_EXAMPLES = examples(
    "persia bench capacity conf=criteo train.batch_size=4096 embedding.memory=128MiB",
    "persia bench capacity conf=criteo model.dim=128 embedding.memory=512MiB --sizes 10M,1B,100T --json",
)
COSTS_EXAMPLES = examples(
    "persia bench costs conf=criteo                  # then persia plan conf=criteo",
    "persia bench costs conf=criteo optimizer=rowwise_adagrad embedding.dtype=bfloat16 --output bfloat16.json",
)

app = typer.Typer(no_args_is_help=True, help="Measure speed.", epilog=EXAMPLES)


def _run_of(overrides: list[str] | None, conf_dir: list[Path] | None) -> "Run":
    from persia_cli.commands.progress import SCREEN
    from persia_cli.jobs.plan import settled_run

    return settled_run(overrides or [], conf_dir or [], SCREEN)


@app.command(epilog=THROUGHPUT_EXAMPLES)
def throughput(
    overrides: Overrides = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps to measure; of a turn with --compare.", show_default="200, 48"),
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="BASELINES",
            help="Alternate with trainers in one process: torch, the same model on one EmbeddingBag; dense, the "
            "same network fed from memory, which is the upper bound; or torch,dense.",
        ),
    ] = None,
    source: Annotated[
        Literal["ring", "loader", "both"],
        typer.Option("--source", help="Source of the batches with --compare; ring: they repeat from memory."),
    ] = "both",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns of each with --compare.")] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round of 8 steps and a ring of 4 with --compare: to see if it runs.")
    ] = False,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Measure samples per second of a job from end to end, and the CPU seconds of each role.

    With --compare, alternating with baselines that train the same model on the same batches in one process.
    """
    from persia_cli.bench.throughput import measure
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.screen import say_json

    run = _run_of(overrides, conf_dir)
    if baselines is not None:
        _compare(run, baselines.split(","), source, steps or 48, rounds, quick, as_json)
        return
    steps = steps or 200
    note = views.noting(as_json)
    note(f"measuring {run.name}, {run.mode.kind}: {steps} steps to warm up, then {steps} that are timed")
    measured = measure(run, steps)
    if as_json:
        say_json(asdict(measured))
        return
    _say_if_made_up(run)
    views.show_throughput(measured)


def _say_if_made_up(run: "Run") -> None:
    from persia_cli.commands.screen import err, labelled
    from persia_cli.config.schema import ParquetDataset
    from persia_cli.data.read.facts import made_up
    from persia_cli.data.read.source import uses_stand_in

    if isinstance(run.dataset, ParquetDataset) and uses_stand_in(run.dataset):
        labelled(err(), "data", made_up(run.dataset))


def _compare(
    run: "Run",
    names: list[str],
    source: Literal["ring", "loader", "both"],
    steps: int,
    rounds: int,
    quick: bool,
    as_json: bool,
) -> None:
    from persia_cli.bench.baselines import choose_baselines
    from persia_cli.bench.compare import RING, Source, compare
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.plan_view import warn_of_slow_precision
    from persia_cli.commands.screen import err, propose

    steps, rounds, ring = (8, 1, 4) if quick else (steps, rounds, RING)
    baselines = choose_baselines(run, names)
    sources: list[Source] = ["ring", "loader"] if source == "both" else [source]
    results = compare(run, baselines, sources, steps, rounds, views.noting(as_json), ring)
    if as_json:
        views.print_json("throughput", results, quick, run)
        return
    _say_if_made_up(run)
    views.show_machine()
    warn_of_slow_precision(run)
    for result in results:
        views.show_comparison(run, result)
    propose(err(), "persia bench modes --delay-ms 5")


@app.command(epilog=MODES_EXAMPLES)
def modes(
    overrides: Overrides = None,
    delay_ms: Annotated[
        float, typer.Option("--delay-ms", min=0, help="One-way delay of every embedding message, in milliseconds.")
    ] = 5.0,
    mbit: Annotated[
        float | None,
        typer.Option(
            "--mbit",
            metavar="MBIT",
            help="Bandwidth in Mbit/s of each embedding worker and server, in each direction.",
            show_default="that of this machine",
        ),
    ] = None,
    hosts: Annotated[
        bool,
        typer.Option(
            "--hosts", help="In place of one link those of hosts with 1000 and with 100 Mbit/s, without and with delay."
        ),
    ] = False,
    steps: Annotated[int, typer.Option("--steps", min=5, help="Steps of each run.")] = 400,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Runs of each mode and link.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One run of 20 steps each: to see if it runs.")] = False,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Measure speed and AUC of every mode, without and with a link between NN workers, embedding workers and servers.

    The link has a delay and perhaps a bandwidth, as if embedding workers and servers were other machines. With --hosts
    there are four of them.
    """
    import math

    from persia_cli.bench.delay_line import NetworkLink
    from persia_cli.bench.modes import links_between_hosts, measure_modes
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.screen import err, propose
    from persia_cli.errors import UserError

    if mbit is not None and mbit <= 0:
        raise UserError(f"--mbit={mbit:g}: a link has a bandwidth above 0 Mbit/s; leave it out for no limit")
    if hosts and mbit is not None:
        raise UserError(f"--mbit={mbit:g}: --hosts measures with its own bandwidths; leave one of the two out")
    run = _run_of(overrides, conf_dir)
    links = links_between_hosts(delay_ms) if hosts else [NetworkLink(delay_ms, math.inf if mbit is None else mbit)]
    steps, rounds = (20, 1) if quick else (steps, rounds)
    results = measure_modes(run, links, steps, rounds, views.noting(as_json))
    if as_json:
        views.print_json("modes", results.values(), quick, run)
        return
    views.show_machine()
    views.show_modes(run, results)
    propose(err(), "persia bench throughput conf=criteo --compare torch,dense")


@app.command(epilog=CAPACITY_EXAMPLES)
def capacity(
    overrides: Overrides = None,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="SIZES", help="Parameters (ids times dim), with K, M, B or T.")
    ] = "10M,1B,100B,10T,100T",
    steps: Annotated[int, typer.Option("--steps", min=4, help="Steps of a turn.")] = 100,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns of each.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="One round of 20 steps: to see if it runs.")] = False,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Measure speed, memory and AUC of models from some that fit into memory to 100 trillion parameters.

    All have the same memory: an id gets a row when it first occurs, and rare rows are evicted. Ids are generated, with
    the shape of the configuration's generator, the skew of Criteo's rows, and labels of a planted model.
    """
    from persia_cli.bench.capacity import measure_capacity, parse_sizes
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.screen import err, propose

    parsed = parse_sizes(sizes)
    run = _run_of(overrides, conf_dir)
    steps, rounds = (20, 1) if quick else (steps, rounds)
    result = measure_capacity(run, parsed, steps, rounds, views.noting(as_json))
    if as_json:
        views.print_json("capacity", [result], quick, run)
        return
    views.show_machine()
    views.show_capacity(result)
    propose(err(), "persia bench throughput conf=criteo")


@app.command(epilog=COSTS_EXAMPLES)
def costs(
    overrides: Overrides = None,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="File of the measurements, in JSON.")] = Path(
        "costs.json"
    ),
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Measure on this machine what a step costs each role, for persia plan.

    Real jobs run for some seconds each, with several batch sizes, dims and networks, on the CPU. Ids are counted in a
    sample of the training rows.
    """
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.screen import err, propose, say_json
    from persia_cli.cost.measure import measure_costs
    from persia_cli.cost.measurements import write_measurements
    from persia_cli.errors import UserError

    if not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: its folder does not exist; create it, or name a file elsewhere")
    measured = measure_costs(_run_of(overrides, conf_dir), views.noting(as_json))
    write_measurements(output, measured)
    if as_json:
        say_json({"costs": measured.costs(), "output": str(output)})
        return
    views.show_costs(output, measured)
    views.warn_of_others(measured.steps)
    propose(err(), " ".join(["persia plan", *(overrides or []), "--costs", str(output)]))

"""`persia bench`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from persia_cli.commands import costs
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

TIER_EXAMPLES = examples(
    "persia bench tier conf=criteo train.batch_size=4096 optimizer=rowwise_adagrad embedding.wire=float16 "
    "cluster.embedding_servers=2",
)

CAPACITY_EXAMPLES = examples(
    "persia bench capacity conf=criteo train.batch_size=4096 embedding.memory=128MiB",
    "persia bench capacity conf=criteo model.dim=128 embedding.memory=512MiB --sizes 10M,1B,100T --json",
)

SCALING_EXAMPLES = examples(
    "persia bench scaling conf=criteo train.batch_size=4096 --most 2",
)

SERVE_EXAMPLES = examples(
    "persia bench serve shop",
    "persia bench serve shop --candidates 500 --user user,country --workers 2",
    "persia bench serve shop --rate 200 --seconds 60 --rounds 1 --json",
)

Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Turns of each.")]
TurnSteps = Annotated[int, typer.Option("--steps", min=4, help="Steps of a turn.")]

app = typer.Typer(no_args_is_help=True, help="Measure speed.", epilog=EXAMPLES)


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
            "same network fed from memory, which is the upper bound; or torch,dense. Or with private: the same "
            "job, but memory of its embedding servers ends with its process.",
        ),
    ] = None,
    source: Annotated[
        str, typer.Option("--source", help="Source of the batches with --compare: loader, ring (of memory) or both.")
    ] = "both",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns of each with --compare.")] = 5,
    ring: Annotated[int, typer.Option("--ring", min=1, help="Batches of the ring.")] = 64,
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
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import out, say
    from persia_cli.jobs.plan import settled_run

    run = settled_run(overrides or [], conf_dir or [], SCREEN)
    if baselines is not None:
        steps, rounds, ring = (8, 1, 4) if quick else (steps or 48, rounds, ring)
        _compare(run, baselines.split(","), source, steps, rounds, ring, quick, as_json)
        return
    steps = steps or 200
    note = views.noting(as_json)
    note(f"measuring {run.name}, {run.mode.kind}: {steps} steps to warm up, then {steps} that are timed")
    measured = measure(run, steps)
    if as_json:
        say(out(), json.dumps(asdict(measured)))
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
    run: "Run", baselines: list[str], source: str, steps: int, rounds: int, ring: int, quick: bool, as_json: bool
) -> None:
    from persia_cli.bench.compare import Source, compare
    from persia_cli.bench.machine import this_machine
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.job_view import warn_of_slow_precision
    from persia_cli.commands.screen import err, labelled, out, propose
    from persia_cli.errors import UserError

    sources: dict[str, tuple[Source, ...]] = {"ring": ("ring",), "loader": ("loader",), "both": ("ring", "loader")}
    if source not in sources:
        raise UserError(f"--source={source}: expected one of {', '.join(sources)}")
    results = compare(run, baselines, sources[source], steps, rounds, ring, views.noting(as_json))
    if as_json:
        views.print_json("throughput", results, quick, run)
        return
    _say_if_made_up(run)
    labelled(out(), "machine", this_machine().processor)
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
    from persia_cli.bench.machine import this_machine
    from persia_cli.bench.modes import links_between_hosts, measure_modes
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, labelled, out, propose
    from persia_cli.errors import UserError
    from persia_cli.jobs.plan import settled_run

    if mbit is not None and mbit <= 0:
        raise UserError(f"--mbit={mbit:g}: a link has a bandwidth above 0 Mbit/s; leave it out for no limit")
    if hosts and mbit is not None:
        raise UserError(f"--mbit={mbit:g}: --hosts measures with its own bandwidths; leave one of the two out")
    run = settled_run(overrides or [], conf_dir or [], SCREEN)
    links = links_between_hosts(delay_ms) if hosts else [NetworkLink(delay_ms, math.inf if mbit is None else mbit)]
    steps, rounds = (20, 1) if quick else (steps, rounds)
    results = measure_modes(run, links, steps, rounds, views.noting(as_json))
    if as_json:
        views.print_json("modes", results.values(), quick, run)
        return
    labelled(out(), "machine", this_machine().processor)
    views.show_modes(run, results)
    propose(err(), "persia bench throughput conf=criteo --compare torch,dense")


@app.command(epilog=TIER_EXAMPLES)
def tier(
    overrides: Overrides = None,
    steps: TurnSteps = 400,
    rounds: Rounds = 5,
    ring: Annotated[int, typer.Option("--ring", min=1, help="Batches that repeat from memory.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="One round of 20 steps: to see if it runs.")] = False,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Measure ids per second of embedding workers and servers alone, alternating with FBGEMM in one process."""
    from persia_cli.bench.machine import this_machine
    from persia_cli.bench.tier import measure_tier
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, labelled, out, propose
    from persia_cli.jobs.plan import settled_run

    run = settled_run(overrides or [], conf_dir or [], SCREEN)
    steps, rounds, ring = (20, 1, 4) if quick else (steps, rounds, ring)
    result = measure_tier(run, steps, rounds, ring, views.noting(as_json))
    if as_json:
        views.print_json("tier", [result], quick, run)
        return
    labelled(out(), "machine", this_machine().processor)
    views.show_tier(run, result)
    propose(err(), "persia bench throughput conf=criteo")


@app.command(epilog=CAPACITY_EXAMPLES)
def capacity(
    overrides: Overrides = None,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="SIZES", help="Parameters (ids times dim), with K, M, B or T.")
    ] = "10M,1B,100B,10T,100T",
    steps: TurnSteps = 100,
    rounds: Rounds = 5,
    quick: Annotated[bool, typer.Option("--quick", help="One round of 20 steps: to see if it runs.")] = False,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Measure speed, memory and AUC of models from some that fit into memory to 100 trillion parameters.

    All have the same memory: an id gets a row when it first occurs, and rare rows are evicted. Ids are generated, with
    the shape of the configuration's generator, the skew of Criteo's rows, and labels of a planted model.
    """
    from persia_cli.bench.capacity import measure_capacity
    from persia_cli.bench.machine import this_machine
    from persia_cli.bench.sizes import parse_sizes
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, labelled, out, propose
    from persia_cli.jobs.plan import settled_run

    parsed = parse_sizes(sizes)
    run = settled_run(overrides or [], conf_dir or [], SCREEN)
    steps, rounds = (20, 1) if quick else (steps, rounds)
    result = measure_capacity(run, parsed, steps, rounds, views.noting(as_json))
    if as_json:
        views.print_json("capacity", [result], quick, run)
        return
    labelled(out(), "machine", this_machine().processor)
    views.show_capacity(result)
    propose(err(), "persia bench scaling conf=criteo train.batch_size=4096")


@app.command(epilog=SCALING_EXAMPLES)
def scaling(
    overrides: Overrides = None,
    most: Annotated[
        int, typer.Option("--most", metavar="N", min=2, max=64, help="Most replicas of a role, from 1 in doubles.")
    ] = 2,
    steps: TurnSteps = 100,
    rounds: Rounds = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One round of 20 steps: to see if it runs.")] = False,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Measure a job with more replicas of one role at a time, each pinned to a processor: speed-up and CPU time."""
    from persia_cli.bench.machine import this_machine
    from persia_cli.bench.scaling import measure_scaling
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, labelled, out, propose
    from persia_cli.jobs.plan import settled_run

    run = settled_run(overrides or [], conf_dir or [], SCREEN)
    steps, rounds = (20, 1) if quick else (steps, rounds)
    results = list(measure_scaling(run, most, steps, rounds, views.noting(as_json)))
    if as_json:
        views.print_json("scaling", results, quick, run)
        return
    labelled(out(), "machine", this_machine().processor)
    views.show_scaling(run, results, this_machine().cores)
    propose(err(), "persia bench tier conf=criteo train.batch_size=4096 optimizer=rowwise_adagrad")


app.command(epilog=costs.EXAMPLES)(costs.costs)


@app.command(epilog=SERVE_EXAMPLES)
def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that persia export wrote.", show_default=False)
    ],
    candidates: Annotated[
        int, typer.Option("--candidates", metavar="N", min=1, max=10_000, help="Samples of a request.")
    ] = 100,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="FIELDS", show_default="the first half",
            help="Fields, between commas, that have one row for all candidates; or none.",
        ),
    ] = None,
    body: Annotated[Literal["binary", "json"], typer.Option("--body", help="Format of the requests.")] = "binary",
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, max=1024, help="Of the server.")] = 1,
    connections: Annotated[
        int | None,
        typer.Option(
            "--connections", metavar="N", min=1, max=512, show_default="4 for each worker",
            help="Connections that send one request after another.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", metavar="R", min=0.1, max=100_000, show_default="50 % and 150 % of the server's limit",
            help="Requests per second that come at random moments.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds of a turn.")] = 5.0,
    rounds: Rounds = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One round of short turns: to see if it runs.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure a server of an exported model: candidates per second and latencies, alternating with its network alone.

    Another process sends the requests: one after another on each connection, with many candidates and with one; then
    at random moments, where latency counts from the moment when a request was due.
    """
    from persia_cli.bench.machine import this_machine
    from persia_cli.bench.serving import ServingPlan, measure_serving
    from persia_cli.commands import bench_views as views
    from persia_cli.commands.screen import err, labelled, out, propose
    from persia_cli.errors import UserError

    seconds, rounds = (0.3, 1) if quick else (seconds, rounds)
    plan = ServingPlan(
        folder, candidates, user, body == "binary", workers, connections, seconds, rounds, rate
    )  # fmt: skip
    try:
        measured = measure_serving(plan, views.noting(as_json))
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'persia-cli[serve]'") from error
    if as_json:
        views.print_json("serve", measured.results, quick, **measured.about())
        return
    labelled(out(), "machine", this_machine().processor)
    views.show_serving(plan, measured)
    propose(err(), f"persia serve {folder} --workers {this_machine().cores}")

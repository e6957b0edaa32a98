"""`persia bench throughput --compare`: a job and trainers in one process, alternating on the same batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Literal

from persia_cli.bench.breakdown import bottleneck, bytes_per_sample, stages_of
from persia_cli.bench.machine import GpuUsage
from persia_cli.bench.portions import Feeder, Portions, RingPortions, portion_shape, table_sizes
from persia_cli.bench.result import OURS, Result, with_ratios
from persia_cli.bench.rounds import TurnFigures, side_of, take_turns, timed_turn, turn_steps
from persia_cli.bench.turns import TurnJob
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import DatasetFacts, inspect
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import UserError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.machine import cpu_seconds, cpu_seconds_of

if TYPE_CHECKING:
    from persia_cli.bench.baselines.trainers import DenseBaseline

PRIVATE = "private"
"""The job itself, but memory of its embedding servers ends with its process."""
BASELINES = ("torch", "torchrec", "dense", "tables", PRIVATE)
"""`tables` are those on a GPU. There, `tables` and `dense` run as graphs."""
Source = Literal["ring", "loader"]


def compare(
    run: Run,
    baselines: Sequence[str],
    sources: Sequence[Source],
    steps: int,
    rounds: int,
    ring: int,
    note: Callable[[str], None],
) -> Iterator[Result]:
    """Measure the run against `baselines` for each source of batches, `rounds` rounds in alternating order.

    A turn measures `steps` steps after a warm-up of a quarter as many; the first round is discarded. `ring` is the
    number of batches in a ring. `note` is called with each event. Raises UserError for runs that cannot be compared.
    """
    _refuse(run, baselines)
    facts = inspect(run.dataset)
    if ring * run.train.batch > facts.train_rows:
        ring = facts.train_rows // run.train.batch
    if not ring:
        raise UserError(f"the data set has no whole batch of train.batch_size={run.train.batch}")
    with terminating_interrupts(), _trainers(run, baselines, note) as trainers:
        for source in sources:
            yield _compare(run, facts, trainers, PRIVATE in baselines, source, steps, rounds, ring, note)


def _refuse(run: Run, baselines: Sequence[str]) -> None:
    unknown = [baseline for baseline in baselines if baseline not in BASELINES]
    if unknown:
        raise UserError(f"there is no baseline {unknown[0]!r}; there are {', '.join(BASELINES)}")
    if not run.cluster.has_processes_here:
        raise UserError("baselines are compared with processes: use cluster=local")
    if run.cluster.nn_workers > 1 and set(baselines) != {PRIVATE}:
        raise UserError("baselines train in one process, so compare with cluster.nn_workers=1")


@contextmanager
def _trainers(run: Run, baselines: Sequence[str], note: Callable[[str], None]) -> "Iterator[list[DenseBaseline]]":
    from persia_cli.bench.baselines.graphed import GraphedDense, GraphedTables
    from persia_cli.bench.baselines.torchrec_trainer import TorchRecBaseline
    from persia_cli.bench.baselines.trainers import DenseBaseline, TorchBaseline, settings_kept
    from persia_cli.training.device import device_of

    on_gpu = bool(baselines) and device_of(run, 0).type == "cuda"
    if "tables" in baselines and not on_gpu:
        raise UserError("--compare tables needs a GPU; compare with torch on the CPU")
    with settings_kept(), ExitStack() as exit_stack:
        found: list[DenseBaseline] = []
        for baseline in [each for each in dict.fromkeys(baselines) if each != PRIVATE]:
            note(f"preparing {baseline}")
            match baseline:
                case "torch":
                    found.append(TorchBaseline(run, table_sizes(run)))
                case "torchrec":
                    rival = TorchRecBaseline(run, table_sizes(run))
                    found.append(exit_stack.enter_context(closing(rival)))
                case "tables":
                    found.append(GraphedTables(run, table_sizes(run)))
                case _:
                    found.append(GraphedDense(run) if on_gpu else DenseBaseline(run))
        yield found


def _compare(
    run: Run,
    facts: DatasetFacts,
    trainers: "Sequence[DenseBaseline]",
    private: bool,
    source: Source,
    steps: int,
    rounds: int,
    ring: int,
    note: Callable[[str], None],
) -> Result:
    """Start the job, and with `private` a second one with private memory; run all turns, and return the results."""
    note(f"{source}: starting the job")
    gpu = next((trainer.gpu for trainer in trainers), None)
    with ExitStack() as exit_stack:
        usage = exit_stack.enter_context(GpuUsage(gpu)) if gpu else None
        jobs = [
            exit_stack.enter_context(TurnJob(run, facts, steps, rounds + 1, ring * (source == "ring"), private=each))
            for each in ([False, True] if private else [False])
        ]
        job = jobs[0]
        shape = portion_shape(run)
        feeder = Feeder(job.plan.run_dir / CONFIG, shape) if source == "loader" and trainers else None
        if feeder is not None:
            exit_stack.callback(feeder.close)
        portions: Portions = feeder or RingPortions(run, shape, ring)
        takers = {OURS: job.turn} | ({PRIVATE: jobs[1].turn} if private else {})
        takers |= {each.name: _taker(each, portions, turn_steps(steps), feeder) for each in trainers}
        taken = take_turns(
            takers,
            rounds,
            lambda text: note(f"{source}: {text}"),
            lambda: sum(each.cpu_seconds() for each in jobs) + (cpu_seconds_of(feeder.pid) if feeder else 0.0),
            usage,
        )
        note(f"{source}: tracing")
        stages = stages_of(*job.finish())
    sides = with_ratios([side_of(name, turns, run.train.batch) for name, turns in taken.items()])
    dense = next((side for side in sides if side.name == "dense"), None)
    return Result(
        source,
        run.name,
        "samples/s",
        sides,
        rounds,
        steps,
        stages=stages,
        hops=bytes_per_sample(run),
        bottleneck=bottleneck(run, sides[0], dense, stages, bool(gpu)),
    )


def _taker(
    trainer: "DenseBaseline", portions: Portions, steps: int, feeder: Feeder | None
) -> Callable[[], TurnFigures]:
    """Return a function that runs a turn of a trainer in this process; `feeder` is the process that reads for it."""

    def step() -> int:
        portion = portions.take()
        trainer.train(portion)
        return len(portion.labels)

    def cpu() -> dict[str, float]:
        return {"trainer": cpu_seconds()} | ({"reader": cpu_seconds_of(feeder.pid)} if feeder else {})

    def turn() -> TurnFigures:
        trainer.prepare()
        return timed_turn(step, steps, cpu)

    return turn

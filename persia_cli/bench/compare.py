"""`persia bench throughput --compare`: a job and trainers in one process, alternating on the same batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Literal

from persia_cli.bench.breakdown import bottleneck, bytes_per_sample, stages_of
from persia_cli.bench.machine import GpuUsage
from persia_cli.bench.portions import Feeder, RingPortions, portion_shape
from persia_cli.bench.result import OURS, Result, with_ratios
from persia_cli.bench.rounds import MeasuredTurn, side_of, take_turns, timed_turn, turn_steps
from persia_cli.bench.turns import TurnJob
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import DatasetFacts, inspect
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import UserError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.machine import cpu_seconds, cpu_seconds_of

if TYPE_CHECKING:
    from persia_cli.bench.baselines import DenseBaseline

RING = 64
"""Batches that repeat from memory."""
Source = Literal["ring", "loader"]


def compare(
    run: Run,
    baselines: "Sequence[type[DenseBaseline]]",
    sources: Sequence[Source],
    steps: int,
    rounds: int,
    note: Callable[[str], None],
    ring: int = RING,
) -> Iterator[Result]:
    """Measure the run against `baselines` for each source of batches, `rounds` rounds in alternating order.

    A turn measures `steps` steps after a warm-up of a quarter as many; the first round is discarded. `ring` is the
    number of batches in a ring. `note` is called with each event. Raises UserError for runs that cannot be compared.
    """
    from persia_cli.bench.baselines import settings_kept

    if not run.cluster.has_processes_here:
        raise UserError("baselines are compared with processes: use cluster=local")
    if run.cluster.nn_workers > 1:
        raise UserError("baselines train in one process, so compare with cluster.nn_workers=1")
    facts = inspect(run.dataset)
    ring = min(ring, facts.train_rows // run.train.batch)
    if not ring:
        raise UserError(f"the data set has no whole batch of train.batch_size={run.train.batch}")
    with terminating_interrupts(), settings_kept(), ExitStack() as exit_stack:
        trainers = []
        for kind in baselines:
            note(f"preparing {kind.name}")
            trainers.append(exit_stack.enter_context(closing(kind(run))))
        for source in sources:
            yield _compare(run, facts, trainers, source, steps, rounds, ring, note)


def _compare(
    run: Run,
    facts: DatasetFacts,
    trainers: "Sequence[DenseBaseline]",
    source: Source,
    steps: int,
    rounds: int,
    ring: int,
    note: Callable[[str], None],
) -> Result:
    """Start the job, run all turns, and return the results."""
    note(f"{source}: starting the job")
    gpu = next((trainer.gpu for trainer in trainers), None)
    with ExitStack() as exit_stack:
        usage = exit_stack.enter_context(GpuUsage(gpu)) if gpu else None
        job = exit_stack.enter_context(TurnJob(run, facts, steps, rounds + 1, ring * (source == "ring")))
        shape = portion_shape(run)
        feeder = Feeder(job.plan.run_dir / CONFIG, shape) if source == "loader" else None
        if feeder is not None:
            exit_stack.callback(feeder.close)
        portions = feeder or RingPortions(run, shape, ring)
        takers = {trainer.name: _taker(trainer, portions, turn_steps(steps), feeder) for trainer in trainers}
        turns = take_turns(
            {OURS: job.turn} | takers,
            rounds,
            lambda text: note(f"{source}: {text}"),
            lambda: job.cpu_seconds() + (cpu_seconds_of(feeder.pid) if feeder else 0.0),
            usage,
        )
        note(f"{source}: tracing")
        stages = stages_of(*job.finish())
    sides = with_ratios([side_of(name, measured, run.train.batch) for name, measured in turns.items()])
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
    trainer: "DenseBaseline", portions: Feeder | RingPortions, steps: int, feeder: Feeder | None
) -> Callable[[], MeasuredTurn]:
    """Return a function that runs a turn of a trainer in this process; `feeder` is the process that reads for it."""

    def step() -> int:
        portion = portions.next_portion()
        trainer.train(portion)
        return len(portion.labels)

    def cpu() -> dict[str, float]:
        return {"trainer": cpu_seconds()} | ({"reader": cpu_seconds_of(feeder.pid)} if feeder else {})

    def turn() -> MeasuredTurn:
        trainer.prepare()
        return timed_turn(step, steps, cpu)

    return turn

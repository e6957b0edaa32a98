"""`persia bench throughput --compare`: a job and trainers in one process, in turns, on the same batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from persia_cli.bench.bars import throughput_bar
from persia_cli.bench.bottleneck import bottleneck
from persia_cli.bench.feeder import Feeder
from persia_cli.bench.machine import Neighbours
from persia_cli.bench.portions import Portions, RingPortions, portion_shape
from persia_cli.bench.stages import Stage
from persia_cli.bench.traffic_bytes import Hop, bytes_per_sample
from persia_cli.bench.turns import INTERVALS, TurnFigures, TurnJob, turn_steps
from persia_cli.config.schema import Run
from persia_cli.data.facts import DatasetFacts, inspect
from persia_cli.errors import UserError
from persia_cli.launch.interrupts import terminating_interrupts
from persia_cli.launch.job import CONFIG
from persia_cli.observe.usage import cpu_seconds, cpu_seconds_of

if TYPE_CHECKING:
    from persia_cli.bench.rivals.trainers import DenseTrainer

OURS = "persia"
RIVALS = ("torch", "dense")
Source = Literal["ring", "loader"]
RING = 64
"""Batches of a ring."""


@dataclass(frozen=True, slots=True)
class Side:
    """One competitor: its medians over all rounds, and the slowest and fastest of them."""

    name: str
    samples_per_s: float
    least: float
    most: float
    cpu_ms: dict[str, float]
    """CPU milliseconds per step of each of its processes."""
    busy_cores: float
    """Cores that others on the machine used during its turns, at most."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours over a rival's samples per second, medians both."""

    rival: str
    ratio: float
    bar: float | None
    """None: no bar is set for such a run."""
    passed: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of one source of batches."""

    source: Source
    rounds: int
    steps: int
    """Steps measured in a turn."""
    sides: list[Side]
    ratios: list[Ratio]
    staleness: float
    hops: list[Hop]
    stages: list[Stage]
    """Of a turn after the others, which is traced and not measured."""
    bottleneck: str


def compare(
    run: Run,
    rivals: Sequence[str],
    sources: Sequence[Source],
    steps: int,
    rounds: int,
    ring: int,
    note: Callable[[str], None],
) -> Iterator[Comparison]:
    """Measure the run against `rivals` for each source of batches, `rounds` rounds in alternating order.

    A turn measures `steps` steps after a quarter as many to warm up; a first round counts for nothing. `ring` is the
    batches of a ring. `note` is told what happens. Raises UserError for what cannot be compared.
    """
    _refuse(run, rivals)
    facts = inspect(run.dataset)
    if ring * run.train.batch_size > facts.train_rows:
        ring = facts.train_rows // run.train.batch_size
    if not ring:
        raise UserError(f"the data set has no whole batch of train.batch_size={run.train.batch_size}")
    with terminating_interrupts(), _trainers(run, rivals, note) as trainers:
        for source in sources:
            yield _compare(run, facts, trainers, source, steps, rounds, ring, note)


def _refuse(run: Run, rivals: Sequence[str]) -> None:
    unknown = [rival for rival in rivals if rival not in RIVALS]
    if unknown:
        raise UserError(f"there is no rival {unknown[0]!r}; there are {', '.join(RIVALS)}")
    if run.cluster.kind != "local":
        raise UserError("rivals are compared with processes: use cluster=local")
    if run.cluster.nn_workers > 1:
        raise UserError("rivals train in one process, so compare with cluster.nn_workers=1")


@contextmanager
def _trainers(run: Run, rivals: Sequence[str], note: Callable[[str], None]) -> "Iterator[list[DenseTrainer]]":
    from persia_cli.bench.rivals.trainers import DenseTrainer, TorchTrainer, settings_kept

    with settings_kept():
        found: list[DenseTrainer] = []
        for rival in dict.fromkeys(rivals):
            note(f"preparing {rival}")
            found.append(TorchTrainer(run, portion_shape(run).sizes) if rival == "torch" else DenseTrainer(run))
        yield found


def _compare(
    run: Run,
    facts: DatasetFacts,
    trainers: "Sequence[DenseTrainer]",
    source: Source,
    steps: int,
    rounds: int,
    ring: int,
    note: Callable[[str], None],
) -> Comparison:
    """Start the job, take all turns, and sum up."""
    note(f"{source}: starting the job")
    turns: dict[str, list[tuple[TurnFigures, float]]] = {name: [] for name in (OURS, *(each.name for each in trainers))}
    with ExitStack() as exit_stack:
        job = exit_stack.enter_context(TurnJob(run, facts, steps, rounds + 1, ring if source == "ring" else 0))
        shape = portion_shape(run)
        feeder = Feeder(job.plan.run_dir / CONFIG, shape) if source == "loader" and trainers else None
        if feeder is not None:
            exit_stack.callback(feeder.close)
        portions: Portions = feeder or RingPortions(run, shape, ring)
        takers: dict[str, Callable[[], TurnFigures]] = {OURS: job.turn}
        for trainer in trainers:
            takers[trainer.name] = _Taker(trainer, portions, turn_steps(steps), None if feeder is None else feeder.pid)
        order = list(takers)
        for number in range(rounds + 1):
            note(f"{source}: round {number} of {rounds}" if number else f"{source}: warming up")
            for name in order:
                watch = _Watch(job, feeder)
                figures = takers[name]()
                if number:
                    turns[name].append((figures, watch.others()))
            order.reverse()
        note(f"{source}: tracing")
        stages = job.finish()
    sides = [_side(name, taken, run.train.batch_size) for name, taken in turns.items()]
    ratios = [_ratio(run, sides[0], side) for side in sides[1:]]
    staleness = median(figures.staleness for figures, _ in turns[OURS])
    hops = bytes_per_sample(run)
    sentence = bottleneck(run, sides[0], next((side for side in sides if side.name == "dense"), None), stages)
    return Comparison(source, rounds, steps, sides, ratios, staleness, hops, stages, sentence)


class _Taker:
    """Turns of a trainer in this process; `beside` is the process that reads for it."""

    def __init__(self, trainer: "DenseTrainer", portions: Portions, steps: int, beside: int | None) -> None:
        self._trainer, self._portions, self._steps, self._beside = trainer, portions, steps, beside

    def __call__(self) -> TurnFigures:
        """Train a turn, the first part to warm up."""
        self._trainer.prepare()
        warm = self._steps // INTERVALS
        self._train(warm)
        begin, before = perf_counter(), self._cpu()
        samples = self._train(self._steps - warm)
        used = {name: after - before[name] for name, after in self._cpu().items()}
        return TurnFigures(samples, perf_counter() - begin, used)

    def _train(self, steps: int) -> int:
        samples = 0
        for _ in range(steps):
            portion = self._portions.take()
            self._trainer.train(portion)
            samples += len(portion.labels)
        return samples

    def _cpu(self) -> dict[str, float]:
        used = {"trainer": cpu_seconds()}
        return used if self._beside is None else used | {"reader": cpu_seconds_of(self._beside)}


class _Watch:
    """Cores that others than the competitors use during a turn."""

    def __init__(self, job: TurnJob, feeder: Feeder | None) -> None:
        self._pids = [*job.pids.values(), *([feeder.pid] if feeder is not None else [])]
        self._neighbours, self._used = Neighbours(), self._cpu()

    def _cpu(self) -> float:
        return sum(cpu_seconds_of(pid) for pid in self._pids)

    def others(self) -> float:
        """Cores used by others since."""
        return max(0.0, self._neighbours.cores() - (self._cpu() - self._used) / self._neighbours.seconds())


def _side(name: str, taken: Sequence[tuple[TurnFigures, float]], batch_size: int) -> Side:
    rates = [figures.samples_per_s for figures, _ in taken]
    cpu = {
        process: median(figures.cpu_s[process] / figures.samples for figures, _ in taken) * batch_size * 1e3
        for process in taken[0][0].cpu_s
    }
    return Side(name, median(rates), min(rates), max(rates), cpu, max(busy for _, busy in taken))


def _ratio(run: Run, ours: Side, theirs: Side) -> Ratio:
    ratio = ours.samples_per_s / theirs.samples_per_s
    bar = throughput_bar(run, theirs.name)
    return Ratio(theirs.name, ratio, bar, None if bar is None else ratio >= bar)

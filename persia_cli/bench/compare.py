"""`persia bench throughput --compare`: a job and trainers in one process take turns on the same batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from persia_cli.bench.bottleneck import bottleneck
from persia_cli.bench.feeder import Feeder
from persia_cli.bench.gpu_usage import GpuUsage
from persia_cli.bench.machine import Neighbours
from persia_cli.bench.portions import Portions, RingPortions, portion_shape
from persia_cli.bench.stages import Stage
from persia_cli.bench.targets import throughput_target
from persia_cli.bench.traffic_bytes import Hop, bytes_per_sample
from persia_cli.bench.turns import INTERVALS, TurnFigures, TurnJob, turn_steps
from persia_cli.config.schema import Run
from persia_cli.data.facts import DatasetFacts, inspect
from persia_cli.errors import UserError
from persia_cli.launch.processes import terminating_interrupts
from persia_cli.observe.history import CONFIG
from persia_cli.observe.processor import this_processor
from persia_cli.observe.usage import cpu_seconds, cpu_seconds_of

if TYPE_CHECKING:
    from persia_cli.bench.baselines.trainers import DenseBaseline

OURS = "persia"
BASELINES = ("torch", "dense")
Source = Literal["ring", "loader"]
RING = 64
"""Number of batches in a ring."""


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
    """Most cores that other processes used during its turns."""
    gpu_busy: float | None = None
    """Fraction of its turns in which the GPU computed; None without a GPU, or if the driver does not report it."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our samples per second over a baseline's, both medians."""

    baseline: str
    ratio: float
    target: float | None
    """None if no target is set for such a run."""
    passed: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results with one source of batches."""

    source: Source
    rounds: int
    steps: int
    """Steps measured in a turn."""
    sides: list[Side]
    ratios: list[Ratio]
    staleness: float
    hops: list[Hop]
    stages: list[Stage]
    """Stages of a last turn, which is traced and not measured."""
    bottleneck: str


def compare(
    run: Run,
    baselines: Sequence[str],
    sources: Sequence[Source],
    steps: int,
    rounds: int,
    ring: int,
    note: Callable[[str], None],
) -> Iterator[Comparison]:
    """Measure the run against `baselines` for each source of batches, `rounds` rounds in alternating order.

    A turn measures `steps` steps after a warm-up of a quarter as many; the first round is discarded. `ring` is the
    number of batches in a ring. `note` is called with each event. Raises UserError for runs that cannot be compared.
    """
    _refuse(run, baselines)
    facts = inspect(run.dataset)
    if ring * run.train.batch_size > facts.train_rows:
        ring = facts.train_rows // run.train.batch_size
    if not ring:
        raise UserError(f"the data set has no whole batch of train.batch_size={run.train.batch_size}")
    with terminating_interrupts(), _trainers(run, baselines, note) as trainers:
        for source in sources:
            yield _compare(run, facts, trainers, source, steps, rounds, ring, note)


def _refuse(run: Run, baselines: Sequence[str]) -> None:
    unknown = [baseline for baseline in baselines if baseline not in BASELINES]
    if unknown:
        raise UserError(f"there is no baseline {unknown[0]!r}; there are {', '.join(BASELINES)}")
    if run.cluster.kind != "local":
        raise UserError("baselines are compared with processes: use cluster=local")
    if run.cluster.nn_workers > 1:
        raise UserError("baselines train in one process, so compare with cluster.nn_workers=1")


@contextmanager
def _trainers(run: Run, baselines: Sequence[str], note: Callable[[str], None]) -> "Iterator[list[DenseBaseline]]":
    from persia_cli.bench.baselines.trainers import DenseBaseline, TorchBaseline, settings_kept

    with settings_kept():
        found: list[DenseBaseline] = []
        for baseline in dict.fromkeys(baselines):
            note(f"preparing {baseline}")
            found.append(TorchBaseline(run, portion_shape(run).sizes) if baseline == "torch" else DenseBaseline(run))
        yield found


def _compare(
    run: Run,
    facts: DatasetFacts,
    trainers: "Sequence[DenseBaseline]",
    source: Source,
    steps: int,
    rounds: int,
    ring: int,
    note: Callable[[str], None],
) -> Comparison:
    """Start the job, run all turns, and return the results."""
    note(f"{source}: starting the job")
    turns: dict[str, list[_Turn]] = {name: [] for name in (OURS, *(each.name for each in trainers))}
    gpu = next((trainer.gpu for trainer in trainers), None)
    with ExitStack() as exit_stack:
        usage = exit_stack.enter_context(GpuUsage(gpu)) if gpu else None
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
                watch = _Watch(job, feeder, usage)
                figures = takers[name]()
                if number:
                    turns[name].append(_Turn(figures, watch.others(), watch.gpu_busy()))
            order.reverse()
        note(f"{source}: tracing")
        stages = job.finish()
    sides = [_side(name, taken, run.train.batch_size) for name, taken in turns.items()]
    ratios = [_ratio(run, sides[0], side, judged=gpu is None) for side in sides[1:]]
    staleness = median(turn.figures.staleness for turn in turns[OURS])
    hops = bytes_per_sample(run)
    sentence = bottleneck(
        run, sides[0], next((side for side in sides if side.name == "dense"), None), stages, bool(gpu)
    )
    return Comparison(source, rounds, steps, sides, ratios, staleness, hops, stages, sentence)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The figures of a competitor's turn, and the load of the machine during it."""

    figures: TurnFigures
    others: float
    gpu_busy: float | None


class _Taker:
    """Turns of a trainer in this process; `beside` is the id of the process that reads for it."""

    def __init__(self, trainer: "DenseBaseline", portions: Portions, steps: int, beside: int | None) -> None:
        self._trainer, self._portions, self._steps, self._beside = trainer, portions, steps, beside

    def __call__(self) -> TurnFigures:
        """Train one turn, after a warm-up."""
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
    """Measures the cores used by processes other than the competitors during a turn, and the load of the GPU."""

    def __init__(self, job: TurnJob, feeder: Feeder | None, usage: GpuUsage | None) -> None:
        self._usage, self._begin = usage, perf_counter()
        self._pids = [*job.pids.values(), *([feeder.pid] if feeder is not None else [])]
        self._neighbours, self._used = Neighbours(), self._cpu()

    def _cpu(self) -> float:
        return sum(cpu_seconds_of(pid) for pid in self._pids)

    def others(self) -> float:
        """Return the cores that other processes have used since the start."""
        return max(0.0, self._neighbours.cores() - (self._cpu() - self._used) / self._neighbours.seconds())

    def gpu_busy(self) -> float | None:
        """Return the fraction of the time since the start in which the GPU computed."""
        return None if self._usage is None else self._usage.since(self._begin)


def _side(name: str, turns: Sequence[_Turn], batch_size: int) -> Side:
    taken = [turn.figures for turn in turns]
    rates = [figures.samples_per_s for figures in taken]
    cpu = {
        process: median(figures.cpu_s[process] / figures.samples for figures in taken) * batch_size * 1e3
        for process in taken[0].cpu_s
    }
    busy = [turn.gpu_busy for turn in turns if turn.gpu_busy is not None]
    others = max(turn.others for turn in turns)
    return Side(name, median(rates), min(rates), max(rates), cpu, others, fmean(busy) if busy else None)


def _ratio(run: Run, ours: Side, theirs: Side, judged: bool) -> Ratio:
    ratio = ours.samples_per_s / theirs.samples_per_s
    # Targets are set for networks on the CPU.
    target = throughput_target(run, theirs.name, this_processor()) if judged else None
    return Ratio(theirs.name, ratio, target, None if target is None else ratio >= target)

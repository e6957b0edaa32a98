"""Alternating turns of competitors, so that a disturbance affects all of them, and the measurements of turns."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter
from typing import Any, TypeVar

from persia_cli.bench.machine import GpuUsage, Neighbours
from persia_cli.bench.result import Side
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import DatasetFacts
from persia_cli.observe.machine import cpu_seconds

INTERVALS = 5
"""Lines of metrics of a turn; the first is the warm-up, in which pipelines fill and loaders lose their lead."""
Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """The measurements of a turn without its first interval."""

    samples: int
    seconds: float
    cpu_s: dict[str, float]
    """CPU seconds of each process, by replica or baseline."""
    staleness: float = 0.0
    """Mean staleness of the steps; 0 for a competitor that has none."""
    auc: float | None = None
    busy_cores: float = 0.0
    """Cores that other processes used."""
    gpu_busy: float | None = None

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


def turn_steps(steps: int) -> int:
    """Return the steps of a turn in which at least `steps` are measured."""
    return INTERVALS * -(-steps // (INTERVALS - 1))


def alternating(names: Iterable[Name], rounds: int) -> Iterator[tuple[int, Name]]:
    """Yield the number of each round with each name, in an order that is reversed each round."""
    order = list(names)
    for number in range(rounds):
        for name in order:
            yield number, name
        order.reverse()


def take_turns(
    takers: Mapping[str, Callable[[], MeasuredTurn]],
    rounds: int,
    note: Callable[[str], None],
    used: Callable[[], float] = lambda: 0.0,
    gpu: GpuUsage | None = None,
    warm_up: bool = True,
) -> dict[str, list[MeasuredTurn]]:
    """Call every taker once a round; return the measurements of its turns. With `warm_up` a first round is discarded.

    `used` returns the CPU seconds that other processes of the competitors have used so far.
    """
    turns: dict[str, list[MeasuredTurn]] = {name: [] for name in takers}
    for number, name in alternating(takers, rounds + warm_up):
        number += not warm_up
        note(f"round {number} of {rounds}: {name}" if number else f"warming up: {name}")
        neighbours, begin = Neighbours(lambda: cpu_seconds() + used()), perf_counter()
        turn = takers[name]()
        if number:
            busy = gpu.since(begin) if gpu else None
            turns[name].append(replace(turn, busy_cores=neighbours.cores(), gpu_busy=busy))
    return turns


def timed_turn(step: Callable[[], int], steps: int, cpu: Callable[[], dict[str, float]]) -> MeasuredTurn:
    """Run a turn of `steps` steps in this process.

    `step` runs one and returns its samples; `cpu` returns the CPU seconds so far of each process that takes part.
    """
    warm = steps // INTERVALS
    for _ in range(warm):
        step()
    before, begin = cpu(), perf_counter()
    samples = sum(step() for _ in range(steps - warm))
    seconds = perf_counter() - begin
    return MeasuredTurn(samples, seconds, {name: after - before[name] for name, after in cpu().items()})


def side_of(name: str, turns: Sequence[MeasuredTurn], batch_size: int, per_sample: int = 1) -> Side:
    """Return the side of a competitor; it is measured in units of which a sample has `per_sample`."""
    rates = [turn.samples_per_s * per_sample for turn in turns]
    aucs = [turn.auc for turn in turns if turn.auc is not None]
    loads = [turn.gpu_busy for turn in turns if turn.gpu_busy is not None]
    return Side(
        name,
        median(rates),
        min(rates),
        max(rates),
        rates=rates,
        cpu_ms={
            process: median(turn.cpu_s[process] / turn.samples for turn in turns) * batch_size * 1e3
            for process in turns[0].cpu_s
        },
        busy_cores=max(turn.busy_cores for turn in turns),
        gpu_busy=fmean(loads) if loads else None,
        staleness=median(turn.staleness for turn in turns),
        auc=fmean(aucs) if aucs else None,
        auc_spread=max(aucs) - min(aucs) if aucs else None,
    )


def samples_and_seconds(lines: Sequence[dict[str, Any]]) -> tuple[int, float]:
    """Return the samples between the first and the last of some lines of metrics, and the seconds that they took.

    The seconds are those of the coordinator's clock, not of the times of reading the lines here.
    """
    sizes = [(after["samples"] - before["samples"], after["samples_per_s"]) for before, after in pairwise(lines)]
    return sum(size for size, _ in sizes), sum(size / rate for size, rate in sizes)


def without_ends(run: Run, facts: DatasetFacts, steps: int, log_every_steps: int) -> Run:
    """Return the run with `steps` steps, over as many epochs as they need, with no stops in between.

    It is evaluated at its end if `facts` have rows for that, and saves no checkpoints; so it claims no place for them.
    """
    per_epoch = -(-facts.train_rows // run.train.batch)
    unsaved = {"every_steps": None, "every_minutes": None, "at_end": False, "path": None}
    train = {"steps": steps, "epochs": -(-steps // per_epoch), "log_every_steps": log_every_steps}
    return run.model_copy(
        update={
            "train": run.train.model_copy(update=train),
            "eval": run.eval.model_copy(update={"every_steps": None, "every_epochs": None}),
            "checkpoint": run.checkpoint.model_copy(update=unsaved),
        }
    )

"""`persia bench capacity`: one job with ids of models of many sizes, and the same memory for all of them.

A size is a number of parameters. The ids are generated with Criteo's shape.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from persia_cli.bench.result import Side
from persia_cli.bench.rounds import MeasuredTurn, side_of, take_turns, turn_steps
from persia_cli.bench.turns import TurnJob, idle_jobs
from persia_cli.config.schema import Run
from persia_cli.config.schema.dataset import GeneratedDataset, Generator
from persia_cli.data.read.generator import GeneratedRows
from persia_cli.errors import UserError
from persia_cli.observe.machine import resident_bytes_of_file
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.plan.embedding import embedding_layout

FULL = 0.98
"""Fraction of the capacity from which memory is full: hashing fills partitions unevenly."""
SKEW = 1.1
"""Exponent of the ids' Zipf law, measured by numbers of distinct ids.

In 26 columns of Criteo Kaggle, 4,096 rows have 23,793 distinct ids, and 45,930 rows have 140,315. With this exponent,
the generator makes 23,887 and 139,999, in tables of the published sizes.
"""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MOST = 10**15
SMALL = 1e-3
"""Tables with fewer ids than this fraction of the largest one's have the same size in every model.

There are as many days and countries in a huge model as in a small one.
"""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The measurement of a model of one size."""

    parameters: int
    ids: int
    side: Side
    ratio: float | None
    """Speed relative to the smallest model that exceeds memory: the median over rounds."""
    rows: int
    evicted: int
    hit_rate: float
    """Fraction of the distinct ids of a batch that had a row, in the measured turns."""
    look_up_hit_rate: float
    """The same of all look-ups, repeats included."""
    memory: int
    """Resident bytes of the servers' rows and index after the measured turns."""
    best_auc: float
    """AUC of the planted probabilities: no model can do better."""
    was_full: bool
    """True if the rows filled the memory before the measured turns."""


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """Models of ascending size with the same memory."""

    name: str
    dim: int
    zipf: float
    budget: int
    """`embedding.memory` in bytes."""
    capacity: int
    """Rows that it can have."""
    batch_size: int
    rounds: int
    steps: int
    sizes: list[ModelSize]

    @property
    def busy_cores(self) -> float:
        """Most cores that other processes used during any turn."""
        return max(size.side.busy_cores for size in self.sizes)

    def exceeding(self) -> list[ModelSize]:
        """Return the models with more ids than memory has rows."""
        return [size for size in self.sizes if size.ids > self.capacity]


def measure_capacity(
    run: Run, sizes: Sequence[int], steps: int, rounds: int, note: Callable[[str], None]
) -> CapacityResult:
    """Train a job of each size in alternating turns, and evaluate each at the end.

    The first round fills the memory. Raise UserError for runs that cannot be measured like this.
    """
    if run.embedding.capacity is not None:
        raise UserError("the models share a budget in bytes; set embedding.memory in place of embedding.capacity")
    rows = (rounds + 2) * turn_steps(steps) * run.train.batch
    runs = {size_text(size): sized_run(run, size, rows) for size in sizes}
    capacity = sum(group.capacity for group in embedding_layout(next(iter(runs.values()))).feature_groups)
    if sizes[-1] // run.model.dim <= capacity:
        raise UserError(
            f"no size exceeds embedding.memory, which has {capacity:,} rows; lower it, or give larger --sizes"
        )
    before: dict[str, dict[str, Any]] = {}

    def turn(name: str, job: TurnJob) -> MeasuredTurn:
        measured = job.turn()
        before.setdefault(name, job.metrics)
        return measured

    with idle_jobs(runs, steps, rounds, note, evaluate=True) as jobs:
        takers = {name: partial(turn, name, job) for name, job in jobs.items()}
        turns = take_turns(takers, rounds, note, lambda: sum(job.cpu_seconds() for job in jobs.values()))
        memory = {name: memory_of_servers(job.pids) for name, job in jobs.items()}
        after = {name: job.metrics for name, job in jobs.items()}
        aucs = {}
        for name, job in jobs.items():
            note(f"evaluating {name}")
            job.finish()
            aucs[name] = next(value for key, value in job.evaluation.items() if key.startswith("auc"))
    base = next(name for name, size in zip(runs, sizes, strict=True) if size // run.model.dim > capacity)
    measured = []
    for (name, sized), size in zip(runs.items(), sizes, strict=True):
        ids = size // run.model.dim
        measured.append(
            ModelSize(
                parameters=size,
                ids=ids,
                side=replace(side_of(name, turns[name], run.train.batch), auc=aucs[name]),
                ratio=round_ratio(turns[name], turns[base]) if ids > capacity else None,
                rows=after[name]["rows"],
                evicted=after[name]["evicted"],
                hit_rate=since(before[name], after[name], "hit_rate"),
                look_up_hit_rate=since(before[name], after[name], "look_up_hit_rate"),
                memory=memory[name],
                best_auc=planted_auc(sized),
                was_full=before[name]["rows"] >= FULL * capacity,
            )
        )
    return CapacityResult(
        run.name,
        run.model.dim,
        SKEW,
        run.embedding.memory,
        capacity,
        run.train.batch,
        rounds,
        steps,
        measured,
    )


def round_ratio(ours: Sequence[MeasuredTurn], theirs: Sequence[MeasuredTurn]) -> float:
    """Return the median over rounds of the ratio of speeds: the turns of a round have like disturbances."""
    return median(our.samples_per_s / their.samples_per_s for our, their in zip(ours, theirs, strict=True))


def since(before: Mapping[str, Any], after: Mapping[str, Any], rate: str) -> float:
    """Return a hit rate between two lines of metrics, whose rates are of the whole training up to them.

    Every step has equally many look-ups, and about as many distinct ids.
    """
    steps: int = after["step"] - before["step"]
    return float(after[rate] * after["step"] - before[rate] * before["step"]) / steps


def memory_of_servers(pids: Mapping[str, int]) -> int:
    """Return the resident bytes of the memory files of the embedding servers among some replicas."""
    return sum(resident_bytes_of_file(pid, name) for name, pid in pids.items() if name.startswith("embedding-server-"))


def planted_auc(run: Run) -> float:
    """Return the AUC of the true probabilities of a generated run's evaluation rows; NaN if these have one class."""
    generator = run.dataset.generator
    assert generator is not None
    rows = GeneratedRows(generator, 1, run.seed)
    batch = rows.rows(generator.train_rows, generator.train_rows + generator.eval_rows)
    chances = rows.probability(0, batch.dense, batch.ids.reshape(batch.features, -1))
    scores = ScoreHistogram(1)
    scores.add(np.log(chances / (1.0 - chances)).reshape(-1, 1), batch.labels)
    best = scores.auc()
    return float("nan") if best is None else best


def parse_sizes(text: str) -> list[int]:
    """Return the numbers of parameters in a text such as `10M,1B,100T`, ascending; raises UserError."""
    sizes = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", part.strip().upper())
        size = round(float(match[1]) * UNITS[match[2]]) if match else 0
        if not 0 < size <= MOST:
            raise UserError(f"--sizes: {part!r} is no number of parameters up to 1000T; give such as 10M,1B,6.25T")
        sizes.add(size)
    return sorted(sizes)


def size_text(parameters: int) -> str:
    """Return a number of parameters with a unit, as `parse_sizes` reads it."""
    unit = next(unit for unit, value in reversed(UNITS.items()) if parameters >= value)
    return f"{parameters / UNITS[unit]:g}{' ' * bool(unit)}{unit}"


def cardinalities_of(shape: tuple[int, ...], ids: int) -> tuple[int, ...]:
    """Return tables with `ids` ids in all: large tables of `shape` multiplied by one factor, small ones unchanged.

    Raise UserError if the small ones have as many already.
    """
    least = SMALL * max(shape, default=0)
    fixed = sum(size for size in shape if size < least)
    large = sum(shape) - fixed
    if ids < fixed + len(shape) or not shape:
        raise UserError(
            f"--sizes: a model of {ids:,} ids is too small for the {len(shape)} tables of this shape; give a larger one"
        )
    return tuple(size if size < least else max(1, round(size * (ids - fixed) / large)) for size in shape)


def sized_run(run: Run, parameters: int, train_rows: int) -> Run:
    """Return the run with generated ids of a model with so many parameters, that is ids times `model.dim`.

    Raise UserError if the run's data set has no generator, whose shape is that of the ids.
    """
    shape = run.dataset.generator
    if shape is None:
        raise UserError("the ids of a model need a shape, and this data set has no dataset.generator; use conf=criteo")
    cardinalities = cardinalities_of(shape.cardinalities, parameters // run.model.dim)
    generator = Generator.model_validate(
        shape.model_dump() | {"train_rows": train_rows, "cardinalities": cardinalities, "zipf": SKEW}
    )
    return run.model_copy(update={"dataset": GeneratedDataset(kind="generated", generator=generator)})

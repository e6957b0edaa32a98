"""Speeds with the network on the GPU: of a step, of embedding workers and servers alone, and of whole jobs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from time import perf_counter

import numpy as np
import torch

from persia_cli.bench.baselines import DenseBaseline, TorchBaseline, choose_baselines
from persia_cli.bench.compare import compare
from persia_cli.bench.portions import RingPortions, portion_shape
from persia_cli.bench.result import OURS, Result, Side, Stage
from persia_cli.bench.rounds import side_of
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.observe.trace import Span, Trace
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.wire_rows import encode_rows
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.device import device_of
from persia_cli.training.distributed import World
from persia_cli.training.graphs.device_queue import LANES
from persia_cli.training.inputs import Samples
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import GroupRows
from scripts.measure import Note
from scripts.measure.comparisons.tier import tier_turns
from scripts.measure.gpu import Check, checked
from scripts.measure.gpu.host_queue import HostQueue
from scripts.measure.gpu.tables import GraphedTables

STAGES = 12
"""Number of a job's stages that are reported, the longest ones."""
WARM, STEPS, BATCHES = 10, 100, 2
PHASE_STEPS = 12
NAMES = {"decode rows": "rows to the device", "dense step": "dense update"}
"""The names of a step's spans in the report."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run to measure, and the length of its measurement."""

    network: str
    dim: int
    batch: int
    precision: str
    steps: int
    ring: int
    servers: int = 4
    workers: int = 3
    staleness: int = 8

    @property
    def name(self) -> str:
        """Return the name of the case, which its targets have."""
        name = f"{self.network} dim {self.dim} batch {self.batch} {self.precision}"
        own = self.servers, self.workers, self.staleness
        return name if own == (4, 3, 8) else f"{name}, S{self.servers} W{self.workers} staleness {self.staleness}"


Runs = Mapping[Case, Run]


def timeline_checks(runs: Runs, device: torch.device, steps: int = STEPS) -> dict[str, Check]:
    """Return measurements of each run's step as a graph, fed from memory; they fail if the steps are no graphs."""
    return {
        f"step of {case.name}": partial(_timeline, f"step of {case.name}", run, device, steps)
        for case, run in runs.items()
    }


def _timeline(name: str, run: Run, device: torch.device, steps: int) -> Iterator[Result]:
    trace = Trace(WARM, WARM + steps)
    rank = DenseTrainer(run, World(device=device), trace, queue=HostQueue() if device.type == "cpu" else None)
    batches = ready_batches(run)
    try:
        for step in range(WARM + steps):
            rank.train(step, *batches[step % len(batches)], lambda gradients: None, lambda scored: None)
        rank.drain()
    finally:
        rank.close()
    spans: dict[tuple[str, str], list[Span]] = {}
    for span in trace.take(len(LANES) * 4 * steps):
        spans.setdefault((span.lane, span.name), []).append(span)
    ends = [span.end_ns or 0 for (lane, _), own in spans.items() if lane == LANES[-1] for span in own]
    yield checked(f"{name} is a graph", len(ends) == steps, f"{len(ends)} of {steps} steps were graphs")
    stages = [
        Stage(lane or "host", stage, fmean(((span.end_ns or 0) - span.begin_ns) / 1e6 for span in own), not lane)
        for (lane, stage), own in spans.items()
    ]
    step_ms = (ends[-1] - ends[0]) / 1e6 / max(1, steps - 1)
    yield Result("", name, "ms from step to step", [Side(OURS, step_ms, step_ms, step_ms)], stages=stages)


def tier_checks(runs: Runs, rounds: int, note: Note) -> dict[str, Check]:
    """Return measurements of embedding workers and servers, whose rows go to an NN worker without a network."""
    return {f"tier {case.name}": partial(_tier, case, run, rounds, note) for case, run in runs.items()}


def _tier(case: Case, run: Run, rounds: int, note: Note) -> Iterator[Result]:
    turns, stages = tier_turns(run, case.steps, rounds, case.ring, {}, note)
    side = side_of(OURS, turns[OURS], run.train.batch)
    yield Result("", f"tier {case.name}", "samples/s", [side], rounds, case.steps, stages=_longest(stages))


def speed_checks(runs: Runs, rounds: int, note: Note) -> dict[str, Check]:
    """Return measurements of each job against the same with all tables on the GPU, and the network alone."""
    return {f"speed {case.name}": partial(_speed, case, run, rounds, note) for case, run in runs.items()}


def _speed(case: Case, run: Run, rounds: int, note: Note) -> Iterator[Result]:
    def compared(baselines: Sequence[type[DenseBaseline]]) -> Result:
        return next(compare(run, baselines, ("ring",), case.steps, rounds, note, case.ring))

    tables = GraphedTables if device_of(run, 0).type == "cuda" else TorchBaseline
    dense, too_large = choose_baselines(run, ["dense"]), ""
    try:
        result = compared([tables, *dense])
    except UserError as error:
        too_large = f"{error}; "  # the tables do not fit into the GPU's memory
        result = compared(dense)
    note(f"{case.name}: the parts of a step")
    stages = [*_longest(result.stages), *phases(run)]
    yield replace(result, case="", name=f"speed {case.name}", stages=stages, note=too_large + result.bottleneck)


def _longest(stages: Sequence[Stage]) -> list[Stage]:
    return sorted(stages, key=lambda stage: -stage.ms)[:STAGES]


class WaitingTrace(Trace):
    """Adds up the time of spans, waiting for the device at their ends; time within a nested span counts for that."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def span(self, lane: str, name: str, what: BatchId | int) -> AbstractContextManager[None]:
        """Time the block."""
        return self._timed(name)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = self._now()
        self._inner.append(0.0)
        yield
        took = self._now() - begin
        self.seconds[name] += took - self._inner.pop()
        self._inner[-1] += took

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()


def phases(run: Run) -> list[Stage]:
    """Return the parts of a step, each waited for, fed from memory with features of one id per sample."""
    device = device_of(run, 0)
    trace = WaitingTrace(device)
    # The parts of a step can be timed apart only without a graph.
    plain = run.model_copy(update={"train": run.train.model_copy(update={"graphs": "off"})})
    rank = DenseTrainer(plain, World(device=device), trace)
    batches = ready_batches(run)
    for step in range(WARM + PHASE_STEPS):
        if step == WARM:
            trace.seconds.clear()
        rank.train(step, *batches[step % BATCHES], lambda gradients: None, lambda scored: None)
    return [
        Stage("one rank", NAMES.get(name, name), seconds / PHASE_STEPS * 1e3, False)
        for name, seconds in trace.seconds.items()
    ]


def ready_batches(run: Run) -> list[tuple[Samples, list[GroupRows]]]:
    """Return the first batches of a run with generated rows, as they come from embedding workers."""
    (group,) = embedding_layout(run).feature_groups
    ring, rng = RingPortions(run, portion_shape(run), BATCHES), np.random.default_rng(0)
    batches = []
    for _ in range(BATCHES):
        portion = ring.next_portion()
        rows, inverse = np.unique(portion.rows.T.reshape(-1), return_inverse=True)
        values = rng.uniform(-0.01, 0.01, (len(rows), group.dim)).astype(np.float32)
        samples = Samples(portion.dense, portion.labels, None, [float(len(portion.labels))] * portion.labels.shape[1])
        batches.append((samples, [GroupRows([encode_rows(values, group.wire)], inverse.astype(np.int32), None)]))
    return batches

"""Samples per second of jobs with their network on the GPU, and of the same network with all of its tables there."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from persia_cli.bench.compare import compare
from persia_cli.bench.portions import RingPortions, portion_shape
from persia_cli.bench.result import OURS, Result
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.observe.trace import Trace
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.wire_rows import encode_rows
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.device import device_of
from persia_cli.training.distributed import World
from persia_cli.training.inputs import Samples
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import GroupRows
from scripts.gpu.bars import judged_by
from scripts.gpu.report import Finding, Findings, Left, Speed, failed

STAGES = 12
"""Number of a job's stages that are reported, the longest ones."""
WARM, STEPS, BATCHES = 5, 12, 2
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
        """Return the name of the case."""
        name = f"{self.network} dim {self.dim} batch {self.batch} {self.precision}"
        own = self.servers, self.workers, self.staleness
        return name if own == (4, 3, 8) else f"{name}, S{self.servers} W{self.workers} staleness {self.staleness}"


def measure(
    cases: Sequence[Case],
    run_of: Callable[[Case], Run],
    rounds: int,
    left: Left,
    note: Callable[[str], None],
) -> Findings:
    """Measure one case after the other, while the time left is enough for the longest so far."""
    longest, missing = 0.0, []
    for case in cases:
        if left() < 1.2 * longest + 5.0:
            missing.append(case.name)
            continue
        before = left()
        try:
            yield from _measure(case, run_of(case), rounds, note)
        except Exception as error:
            yield failed(f"speed of {case.name}", error)
        longest = max(longest, before - left())
    if missing:
        yield Finding("speed", "LEFT OUT", f"there was no time left for: {', '.join(missing)}")


def _measure(case: Case, run: Run, rounds: int, note: Callable[[str], None]) -> Findings:
    def compared(baselines: Sequence[str]) -> Result:
        return next(iter(compare(run, baselines, ("ring",), case.steps, rounds, case.ring, note)))

    tables = "tables" if device_of(run, 0).type == "cuda" else "torch"
    try:
        comparison = compared((tables, "dense"))
    except UserError as error:
        # The tables do not fit into the GPU's memory.
        yield Finding(f"speed of {case.name}", "INFO", str(error))
        comparison = compared(("dense",))
    note(f"{case.name}: the parts of a step")
    sides = {side.name: side for side in comparison.sides}
    stages = sorted(comparison.stages, key=lambda stage: -stage.ms)[:STAGES]
    ours, dense = sides[OURS].median, sides["dense"].median
    on_gpu = sides[tables].median if tables in sides else None
    yield Speed(
        case.name,
        case.network,
        case.dim,
        case.batch,
        case.precision,
        ours,
        on_gpu,
        dense,
        {name: side.gpu_busy for name, side in sides.items() if side.gpu_busy is not None},
        {f"{stage.replica} {stage.stage}{' (meanwhile)' if stage.aside else ''}": stage.ms for stage in stages},
        phases(run),
        comparison.bottleneck,
        judged_by(case.name, ours, on_gpu, dense),
    )


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


def phases(run: Run) -> dict[str, float]:
    """Return milliseconds per step of each of its parts, fed from memory with features of one id per sample."""
    device = device_of(run, 0)
    trace = WaitingTrace(device)
    # The parts of a step can be timed apart only without a graph.
    plain = run.model_copy(update={"train": run.train.model_copy(update={"graphs": "off"})})
    rank = DenseTrainer(plain, World(device=device), trace)
    batches = ready_batches(run)
    for step in range(WARM + STEPS):
        if step == WARM:
            trace.seconds.clear()
        rank.train(step, *batches[step % BATCHES], lambda gradients: None, lambda scored: None)
    return {NAMES.get(name, name): seconds / STEPS * 1e3 for name, seconds in trace.seconds.items()}


def ready_batches(run: Run) -> list[tuple[Samples, list[GroupRows]]]:
    """Return the first batches of a run with generated rows, as they come from the tier."""
    (group,) = embedding_layout(run).feature_groups
    ring, rng = RingPortions(run, portion_shape(run), BATCHES), np.random.default_rng(0)
    batches = []
    for _ in range(BATCHES):
        portion = ring.take()
        rows, inverse = np.unique(portion.rows.T.reshape(-1), return_inverse=True)
        values = rng.uniform(-0.01, 0.01, (len(rows), group.dim)).astype(np.float32)
        samples = Samples(portion.dense, portion.labels, None, [float(len(portion.labels))] * portion.labels.shape[1])
        batches.append((samples, [GroupRows([encode_rows(values, group.wire)], inverse.astype(np.int32), None)]))
    return batches

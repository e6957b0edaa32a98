"""Samples per second of jobs with their network on the GPU, beside the same network with all of its tables there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from persia_cli.bench.compare import OURS, Comparison, compare
from persia_cli.bench.gpu.finding import Finding, Findings, Left, Speed, failed
from persia_cli.bench.gpu.phases import phases
from persia_cli.config.schema import Run
from persia_cli.errors import UserError

STAGES = 12
"""Number of a job's stages that are reported, the longest ones."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run to measure, and the length of its measurement."""

    network: str
    dim: int
    batch: int
    precision: str
    steps: int
    ring: int

    @property
    def name(self) -> str:
        """Return the name of the case."""
        return f"{self.network} dim {self.dim} batch {self.batch} {self.precision}"


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
    def compared(baselines: Sequence[str]) -> Comparison:
        return next(iter(compare(run, baselines, ("ring",), case.steps, rounds, case.ring, note)))

    try:
        comparison = compared(("torch", "dense"))
    except UserError as error:
        # The tables do not fit into the GPU's memory.
        yield Finding(f"speed of {case.name}", "INFO", str(error))
        comparison = compared(("dense",))
    note(f"{case.name}: the parts of a step")
    sides = {side.name: side for side in comparison.sides}
    stages = sorted(comparison.stages, key=lambda stage: -stage.ms)[:STAGES]
    yield Speed(
        case.network,
        case.dim,
        case.batch,
        case.precision,
        sides[OURS].samples_per_s,
        sides["torch"].samples_per_s if "torch" in sides else None,
        sides["dense"].samples_per_s,
        {name: side.gpu_busy for name, side in sides.items() if side.gpu_busy is not None},
        {f"{stage.replica} {stage.stage}{' (meanwhile)' if stage.aside else ''}": stage.ms for stage in stages},
        phases(run),
        comparison.bottleneck,
    )

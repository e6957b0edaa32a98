"""The speed of the embedding tier alone: its rows and gradients go to an NN worker without a network."""

import sys
from collections.abc import Callable, Mapping

from persia_cli.bench.breakdown import stages_of
from persia_cli.bench.null_worker import NullWorker
from persia_cli.bench.result import OURS
from persia_cli.bench.rounds import side_of, take_turns
from persia_cli.bench.turns import TurnJob
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import inspect
from persia_cli.engines.job import SWITCH_INTERVAL_S
from persia_cli.engines.signals import terminating_interrupts
from scripts.gpu.report import Finding, Findings, Left, failed, left_out

STAGES = 6
"""Number of stages that are reported, the longest ones."""


def measure_tier(
    runs: Mapping[str, Run], steps: int, rounds: int, ring: int, left: Left, note: Callable[[str], None]
) -> Findings:
    """Measure each run's job, `steps` steps a round, on `ring` batches that repeat."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    longest = 0.0
    for name, run in runs.items():
        if left() < 1.2 * longest + 5.0:
            yield left_out(f"tier {name}")
            continue
        before = left()
        try:
            yield Finding(f"tier {name}", "INFO", _measured(run, steps, rounds, ring, note))
        except Exception as error:
            yield failed(f"tier {name}", error)
        longest = max(longest, before - left())


def _measured(run: Run, steps: int, rounds: int, ring: int, note: Callable[[str], None]) -> str:
    facts = inspect(run.dataset)
    with terminating_interrupts(), TurnJob(run, facts, steps, rounds + 1, ring, NullWorker) as job:
        turns = take_turns({OURS: job.turn}, rounds, note, job.cpu_seconds)[OURS]
        stages = stages_of(*job.finish())
    side = side_of(OURS, turns, run.train.batch)
    longest = sorted((stage for stage in stages if not stage.aside), key=lambda stage: -stage.ms)[:STAGES]
    work = ", ".join(f"{stage.replica} {stage.stage} {stage.ms:.2f}" for stage in longest)
    return f"{side.median:,.0f} samples/s ({side.least:,.0f} to {side.most:,.0f}); ms of a step: {work}"

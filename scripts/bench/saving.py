"""`python -m scripts.bench saving`: training while checkpoints are written, against the same job between them."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from persia_cli.bench.result import OURS, Result, Side, with_ratios
from persia_cli.bench.rounds import without_ends
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import inspect
from persia_cli.engines.engine import engine_here
from persia_cli.engines.readiness import require_ready
from persia_cli.errors import PersiaError, UserError
from persia_cli.plan.job import plan_job

INTERVALS = 20
"""Lines of metrics between two saves."""
NO_SAVE = "no save"
Line = dict[str, Any]


class Save(NamedTuple):
    """A checkpoint: seconds since 1970 when training stopped for its cut and when it was whole, and its size."""

    begun: float
    whole: float
    nbytes: int


def measure_saving(run: Run, steps: int, saves: int, note: Callable[[str], None]) -> Result:
    """Train with a save every `steps` steps, `saves` times, and compare the intervals in which files were written.

    The first `steps` steps warm up. Raises UserError for runs that cannot be measured, PersiaError if saves take so
    little or so much time that nothing can be compared.
    """
    if not run.cluster.has_processes_here:
        raise UserError("saving is measured together with other processes: use cluster=local")
    facts = inspect(run.dataset)
    steps = max(1, steps // INTERVALS) * INTERVALS
    saved = {"every_steps": steps, "keep": 1, "path": run.checkpoint.path}
    run = without_ends(run, facts, (saves + 1) * steps, steps // INTERVALS)
    run = run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update=saved)})
    plan = plan_job(run, replace(facts, eval_rows=0), "train", Path("bench"))
    require_ready([plan])
    note(f"{steps} steps to warm up, then {saves} saves with {steps} steps from each to the next")
    with tempfile.TemporaryDirectory(prefix="persia-bench-", dir=Path.cwd()) as folder:
        plan = replace(plan, job=replace(plan.job, run_dir=folder))
        result = engine_here(run.cluster).launch(plan, lambda: None)
    found = saves_of(result.events)[:saves]
    sides = compare_rates([line for line in result.metrics if line["split"] == "train"], found, steps)
    seconds, size = median(save.whole - save.begun for save in found), median(save.nbytes for save in found)
    said = f"a save of {size / 1e6:,.0f} MB takes {seconds:.1f} s"
    return Result("saving", run.name, "samples/s", sides, saves, steps, note=said)


def saves_of(events: Sequence[Line]) -> list[Save]:
    """Return the checkpoints of a run in their order."""
    begun = {each["step"]: each["time"] for each in events if each["event"] == "phase" and each["phase"] == "saving"}
    return [Save(begun[each["step"]], each["time"], each["nbytes"]) for each in events if each["event"] == "saved"]


def compare_rates(lines: Sequence[Line], saves: Sequence[Save], steps: int) -> list[Side]:
    """Return samples per second during saves and between them: for each save, of the lines up to the next one.

    A line counts as during a save if at least half of its time is, and as between two if none of it is.
    """
    beside: list[float] = []
    alone: list[float] = []
    for number, save in enumerate(saves, 1):
        rates: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])
        for before, line in pairwise(lines):
            if not number * steps < line["step"] <= (number + 1) * steps:
                continue
            samples = line["samples"] - before["samples"]
            seconds = samples / line["samples_per_s"]
            common = max(0.0, min(line["time"], save.whole) - max(line["time"] - seconds, save.begun))
            if common == 0.0 or common >= seconds / 2:
                rates[common == 0.0].append((samples, seconds))
        if not all(rates):
            what = "less than half an interval" if not rates[0] else "all the time until the next one"
            raise PersiaError(f"save {number} took {what}; measure {'fewer' if not rates[0] else 'more'} steps")
        for found, each in zip((beside, alone), rates, strict=True):
            found.append(sum(size for size, _ in each) / sum(seconds for _, seconds in each))
    sides = [Side(who, median(each), min(each), max(each)) for who, each in ((OURS, beside), (NO_SAVE, alone))]
    return with_ratios(sides)

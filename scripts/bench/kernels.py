"""`python -m scripts.bench kernels`: every part of the embedding store against its baselines and limits."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace

from persia_cli.bench.machine import Neighbours
from persia_cli.bench.result import Result
from persia_cli.errors import ConfigError
from persia_cli.kernels.toolchain.memory import retain_freed_memory
from scripts.bench import (
    capacity_cases,
    journal_cases,
    mapped_cases,
    process_cases,
    save_cases,
    step_cases,
    store_cases,
    worker_cases,
)
from scripts.bench.alternate import Case, Scale

CASES: dict[str, Case] = {
    "look-up": store_cases.look_up,
    "update": store_cases.update,
    "optimizers": store_cases.optimizers,
    "journal": journal_cases.journal,
    "index": store_cases.index,
    "dedup": worker_cases.dedup,
    "pool": worker_cases.pool,
    "cast": worker_cases.cast,
    "step": step_cases.whole_step,
    "shards": capacity_cases.two_shards,
    "capacity": capacity_cases.at_capacity,
    "save": save_cases.save,
    "serve": save_cases.serve,
    "mapped": mapped_cases.mapped,
    "memory": process_cases.memory,
    "start": process_cases.start,
}
"""The cases by name, in the order in which they run."""
LEAST_S = 0.2
"""Seconds within which results belong to the same timing; the clock of other processes' time is no finer."""


def chosen(only: str | None) -> list[str]:
    """Return the names of cases that contain a text, or all without one; raises ConfigError if there is none."""
    names = [name for name in CASES if only is None or only in name]
    if not names:
        raise ConfigError(f"no benchmark has '{only}' in its name; there are {', '.join(CASES)}")
    return names


def run(names: list[str], scale: Scale, begin: Callable[[str], object]) -> Iterator[Result]:
    """Yield the results of cases as they come; `begin` is called with the name of each case.

    The process keeps freed memory from then on, as the processes of a job do.
    """
    retain_freed_memory()
    for name in names:
        begin(name)
        neighbours, busy = Neighbours(), 0.0
        for result in CASES[name](scale):
            if neighbours.seconds() > LEAST_S:
                neighbours, busy = Neighbours(), round(neighbours.cores(), 2)
            sides = [replace(side, busy_cores=busy) for side in result.sides]
            yield replace(result, case=name, sides=sides, rounds=scale.rounds)
        gc.collect()

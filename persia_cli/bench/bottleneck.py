"""What holds a job back, said in one sentence that follows from what was measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from persia_cli.config.schema import Run

if TYPE_CHECKING:
    from persia_cli.bench.compare import Side
    from persia_cli.bench.stages import Stage

WAITING = "wait for batch"
"""The stage of an NN worker in which it has nothing to compute."""
FULL = 0.9
"""Share of a core, or of the machine, from which on it counts as fully used."""


def bottleneck(run: Run, ours: Side, dense: Side | None, stages: Sequence[Stage] = ()) -> str:
    """Name what a step's time goes to: the machine's cores, the NN worker's arithmetic, a busy role, or waiting."""
    step_ms = run.train.batch_size / ours.samples_per_s * 1e3
    cores = len(os.sched_getaffinity(0))
    roles = _by_role(ours.cpu_ms)
    total, nn = sum(roles.values()), roles.get("nn-worker", 0.0)
    tier = {role: ms for role, ms in ours.cpu_ms.items() if not role.startswith(("nn-worker", "coordinator"))}
    busiest = max(tier, key=lambda role: tier[role])
    shares = ", ".join(f"{role} {ms:.1f}" for role, ms in sorted(roles.items(), key=lambda each: -each[1]))
    bound = f"; the dense network alone takes {_step_ms(run, dense):.1f} ms" if dense is not None else ""
    if total + ours.busy_cores * step_ms >= FULL * cores * step_ms:
        return (
            f"The {cores} cores are the bottleneck: a step of {step_ms:.1f} ms needs {total:.1f} ms of CPU "
            f"({shares}), with {ours.busy_cores:.1f} cores used by others{bound}."
        )
    count = f"{run.train.threads} thread{'s' if run.train.threads > 1 else ''}"
    waits = [stage.ms for stage in stages if stage.stage == WAITING]
    waited = f", waits {max(waits):.2f} ms for embeddings" if waits else ""
    if nn >= FULL * min(run.train.threads, cores) * step_ms:
        return (
            f"The NN worker's arithmetic is the bottleneck: it computes for {nn:.1f} ms of CPU in a step of "
            f"{step_ms:.1f} ms on {count}{waited}{bound}; the busiest other process, {busiest}, needs "
            f"{tier[busiest]:.1f} ms."
        )
    if tier[busiest] >= FULL * step_ms:
        return f"{busiest} is the bottleneck: it is busy for {tier[busiest]:.1f} ms of a step of {step_ms:.1f} ms."
    return (
        f"Waiting is the bottleneck: of a step of {step_ms:.1f} ms the NN worker computes for {nn:.1f} ms of CPU"
        f"{waited}, and the busiest other process, {busiest}, computes for {tier[busiest]:.1f} ms{bound}."
    )


def _step_ms(run: Run, side: Side) -> float:
    return run.train.batch_size / side.samples_per_s * 1e3


def _by_role(cpu_ms: dict[str, float]) -> dict[str, float]:
    roles: dict[str, float] = {}
    for replica, ms in cpu_ms.items():
        role = replica.rpartition("-")[0]
        roles[role] = roles.get(role, 0.0) + ms
    return roles

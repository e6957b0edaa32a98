"""The bottleneck of a job, in one sentence that follows from the measurements."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from persia_cli.config.schema import Run

if TYPE_CHECKING:
    from persia_cli.bench.compare import Side
    from persia_cli.bench.stages import Stage

WAITING = "wait for batch"
"""The stage in which an NN worker has nothing to compute."""
FULL = 0.9
"""Fraction of a core, or of the machine, from which on it counts as fully used."""


def bottleneck(run: Run, ours: Side, dense: Side | None, stages: Sequence[Stage] = (), on_gpu: bool = False) -> str:
    """Name the main cost of a step: the machine's cores, the NN worker's arithmetic, a busy role, or waiting.

    A thread that waits for its GPU counts as busy in the system's figures. So where the network is `on_gpu`, the NN
    worker is judged by the time that it waits for embeddings.
    """
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
    if on_gpu and waits and max(waits) < (1.0 - FULL) * step_ms:
        return (
            f"The NN worker with its GPU is the bottleneck: of a step of {step_ms:.1f} ms it waits {max(waits):.2f} ms "
            f"for embeddings{bound}; the busiest other process, {busiest}, needs {tier[busiest]:.1f} ms."
        )
    if not on_gpu and nn >= FULL * min(run.train.threads, cores) * step_ms:
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

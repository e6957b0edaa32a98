"""The breakdown of a job's time and bytes: stages of a step, bytes on each hop, and the bottleneck in one sentence."""

import os
from collections.abc import Sequence

from persia_cli.bench.result import Hop, Side, Stage
from persia_cli.config.schema import Run
from persia_cli.data.read.source import open_source
from persia_cli.observe.recordings import ReplicaTrace
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.wire_rows import row_bytes

WAITING = "wait for batch"
"""The stage in which an NN worker has nothing to compute."""
FULL = 0.9
"""Fraction of a core, or of the machine, from which on it counts as fully used."""
BATCHES = 4
"""Number of batches that are counted."""
KEY_BYTES, TABLE_BYTES, POSITION_BYTES = 8, 2, 4


def stages_of(parts: Sequence[ReplicaTrace], steps: int) -> list[Stage]:
    """Add up the spans of a trace of `steps` steps per replica, in their order within a step."""
    stages = []
    for part in parts:
        totals: dict[tuple[str, bool], int] = {}
        firsts: dict[tuple[str, bool], int] = {}
        for span in part.spans:
            if span.end_ns is None:
                continue
            key = (span.name, not span.lane)
            totals[key] = totals.get(key, 0) + span.end_ns - span.begin_ns
            firsts[key] = min(firsts.get(key, span.begin_ns), span.begin_ns)
        order = sorted(totals, key=lambda key: (key[1], firsts[key]))
        stages += [Stage(part.replica, name, totals[name, aside] / steps / 1e6, aside) for name, aside in order]
    return stages


def bytes_per_sample(run: Run) -> list[Hop]:
    """Count the bytes in the messages of the first training batches, without headers of a few hundred bytes.

    The batches are planned as an embedding worker plans them, so only unique rows count.
    """
    layout = embedding_layout(run)
    planner = RowPlanner(layout, run.cluster.embedding_servers)
    source = open_source(run.dataset, "train", run.seed, run.links)
    hops = dict.fromkeys(
        [
            "loader to embedding worker: ids",
            "loader to NN worker: samples",
            "embedding worker to servers: keys",
            "servers to embedding worker: rows",
            "embedding worker to NN worker: rows and inverse",
            "NN worker to embedding worker: gradients",
            "embedding worker to servers: keys and gradients",
        ],
        0,
    )
    samples = 0
    try:
        for step in range(min(BATCHES, -(-source.rows // run.train.batch))):
            start = step * run.train.batch
            batch = source.read(0, start, min(start + run.train.batch, source.rows))
            samples += batch.size
            weights = 0 if batch.weights is None else batch.weights.nbytes
            inverse = keys = rows = 0
            for group, unique in zip(
                layout.feature_groups, planner.plan(batch.ids, batch.offsets, batch.size), strict=True
            ):
                inverse += unique.inverse.size * POSITION_BYTES
                inverse += 0 if unique.offsets is None else unique.offsets.nbytes
                keys += unique.keys.size * (KEY_BYTES + TABLE_BYTES)
                rows += unique.keys.size * row_bytes(group.dim, group.wire)
            ids = batch.ids.nbytes + batch.offsets.nbytes
            sizes = [ids, batch.dense.nbytes + batch.labels.nbytes + weights, keys, rows, rows + inverse, rows]
            for hop, size in zip(hops, [*sizes, keys + rows], strict=True):
                hops[hop] += size
    finally:
        source.close()
    return [Hop(hop, size / samples) for hop, size in hops.items()]


def bottleneck(run: Run, ours: Side, dense: Side | None, stages: Sequence[Stage] = (), on_gpu: bool = False) -> str:
    """Name the main cost of a step: the machine's cores, the NN worker's arithmetic, a busy role, or waiting.

    A thread that waits for its GPU counts as busy in the system's counters. So where the network is `on_gpu`, the NN
    worker is judged by the time that it waits for embeddings.
    """
    step_ms = run.train.batch / ours.median * 1e3
    cores = len(os.sched_getaffinity(0))
    roles = _by_role(ours.cpu_ms)
    total, nn = sum(roles.values()), roles.get("nn-worker", 0.0)
    tier = {role: ms for role, ms in ours.cpu_ms.items() if not role.startswith(("nn-worker", "coordinator"))}
    busiest = max(tier, key=lambda role: tier[role])
    parts = ", ".join(f"{role} {ms:.1f}" for role, ms in sorted(roles.items(), key=lambda role_ms: -role_ms[1]))
    bound = f"; the dense network alone takes {_step_ms(run, dense):.1f} ms" if dense is not None else ""
    if total + ours.busy_cores * step_ms >= FULL * cores * step_ms:
        return (
            f"The {cores} cores are the bottleneck: a step of {step_ms:.1f} ms needs {total:.1f} ms of CPU "
            f"({parts}), with {ours.busy_cores:.1f} cores used by others{bound}."
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
    return run.train.batch / side.median * 1e3


def _by_role(cpu_ms: dict[str, float]) -> dict[str, float]:
    roles: dict[str, float] = {}
    for replica, ms in cpu_ms.items():
        role = replica.rpartition("-")[0]
        roles[role] = roles.get(role, 0.0) + ms
    return roles

"""The bytes of arrays per sample on each hop between roles, counted on real batches of a run."""

from dataclasses import dataclass

from persia_cli.config.schema import Run
from persia_cli.data.source import open_source
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.wire_rows import row_bytes

BATCHES = 4
"""Number of batches that are counted."""
KEY_BYTES, TABLE_BYTES, POSITION_BYTES = 8, 2, 4


@dataclass(frozen=True, slots=True)
class Hop:
    """The bytes that go from one role to another."""

    hop: str
    bytes_per_sample: float


def bytes_per_sample(run: Run) -> list[Hop]:
    """Count the bytes in the messages of the first training batches, without headers of a few hundred bytes.

    The batches are planned as an embedding worker plans them, so only unique rows count.
    """
    layout = embedding_layout(run)
    planner = RowPlanner(layout, run.cluster.embedding_servers)
    source = open_source(run.dataset, "train", run.seed)
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
        for step in range(min(BATCHES, -(-source.rows // run.train.batch_size))):
            start = step * run.train.batch_size
            batch = source.read(0, start, min(start + run.train.batch_size, source.rows))
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

"""The shard of an embedding server: in memory of its own, or in a file that its next process takes over."""

import logging

from persia_cli.config.schema import Run
from persia_cli.control.position import TRAIN
from persia_cli.control.watermarks import Watermarks
from persia_cli.errors import RoleError
from persia_cli.kernels.memory import Empty
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.store.kept_shard import KeptShard
from persia_cli.store.repair import Repairs, last_new_keys
from persia_cli.store.shard import Shard
from persia_cli.wire.arrays import Array
from persia_cli.wire.parts import BatchId, Sender

log = logging.getLogger(__name__)

MOST_DEATHS = 1
"""Processes that may die at the same request; the next one would too."""


def begin_shard(run: Run, job: Job, server: Sender, file: int | None, empty: Empty) -> Shard:
    """Return an empty shard for the first process of a server, in `file` if the run wants that and there is one."""
    layout, cluster = embedding_layout(run), run.cluster
    if server.incarnation > 1:
        raise RoleError("the rows of this server ended with its first process (cluster.server_memory=private)")
    if cluster.server_memory == "private":
        return Shard(layout, server.index, cluster.embedding_servers, empty)
    if file is None:
        log.warning("nobody keeps the memory of this server: it was started without a launcher and --supervise")
        return Shard(layout, server.index, cluster.embedding_servers, empty)
    servers, ranks = cluster.embedding_servers, cluster.nn_workers
    return KeptShard.create(file, layout, server.index, servers, ranks, job.first_step - 1, empty)


def takes_over(run: Run, server: Sender, file: int | None) -> bool:
    """Return whether a server's process goes on with the shard of one before it."""
    return server.incarnation > 1 and file is not None and run.cluster.server_memory == "shared"


def take_over(run: Run, server: Sender, file: int, empty: Empty) -> tuple[KeptShard, Repairs]:
    """Return the shard of a process that was killed, with the request that it was at finished, and what was repaired.

    Raises MemoryFileError if it cannot be trusted, PoisonError if another process had died at the same request.
    """
    layout, cluster = embedding_layout(run), run.cluster
    servers, ranks = cluster.embedding_servers, cluster.nn_workers
    shard, repairs = KeptShard.attach(file, layout, server.index, servers, ranks, empty, MOST_DEATHS)
    log.info("took over %d rows; finished: %s", repairs.rows, repairs.request)
    return shard, repairs


def restore_windows(watermarks: Watermarks, shard: KeptShard) -> None:
    """Set the windows of applied steps to what the shard says."""
    for window, (watermark, above) in zip(watermarks.windows, shard.applied.windows(), strict=True):
        window.watermark, window.above = watermark, above


def unsaid_keys(shard: KeptShard, generation: int) -> dict[BatchId, list[Array]]:
    """Return the last look-up, if it is done, with its new keys: its answer may not have been sent."""
    last = last_new_keys(shard)
    if last is None:
        return {}
    request, new = last
    return {BatchId(generation, TRAIN, request.step, request.ranks[0]): list(new)}

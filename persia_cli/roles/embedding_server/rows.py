"""The rows that an embedding server begins with: none, those of the process before it, or loaded ones."""

import logging

from persia_cli.config.schema import Run
from persia_cli.control.position import TRAIN
from persia_cli.control.watermarks import Watermarks
from persia_cli.data.vectors import VectorColumns, read_vectors
from persia_cli.errors import RoleError
from persia_cli.kernels.memory import Empty
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.plan.replacement import keeps_memory
from persia_cli.plan.warm_start import TakenVectors, WarmStart
from persia_cli.storage.places import Place, place_of
from persia_cli.store.checkpoints.chain import read_chain
from persia_cli.store.checkpoints.changes import ChangeLog
from persia_cli.store.checkpoints.row_files import Progress, load_shard
from persia_cli.store.checkpoints.sighting_files import load_sightings
from persia_cli.store.checkpoints.warm_rows import WarmRows
from persia_cli.store.memory.answers import NewKeys
from persia_cli.store.memory.recoverable_shard import CHANGES, RecoverableShard, Repairs
from persia_cli.store.shard import Shard
from persia_cli.wire.message import BatchId, Sender

log = logging.getLogger(__name__)

MOST_DEATHS = 1
"""Processes that may die at the same request; the next one would too."""


def shard_of(run: Run, job: Job, server: Sender, file: int | None, empty: Empty) -> tuple[Shard, Repairs | None]:
    """Return the shard that a process goes on with, and what was repaired in it, or an empty one, and None.

    Raises RoleError or MemoryFileError if there should be rows of a process before that cannot be taken over;
    PoisonError if another process had died at the same request.
    """
    if server.incarnation > 1 and file is not None:
        return take_over(run, server, file, empty)
    if server.incarnation > 1:
        raise RoleError("the rows of this server ended with its first process, since nothing kept its memory")
    return _empty_shard(run, job, server, file, empty), None


def _empty_shard(run: Run, job: Job, server: Sender, file: int | None, empty: Empty) -> Shard:
    """Return a shard without rows, in `file` if there is one."""
    layout, cluster = embedding_layout(run), run.cluster
    if file is None:
        if keeps_memory(run, job, server.role):
            log.warning("the memory of this server ends with its process: start it with --supervise to keep it")
        return Shard(layout, server.index, cluster.embedding_servers, empty)
    servers, ranks = cluster.embedding_servers, cluster.nn_workers
    return RecoverableShard.create(file, layout, server.index, servers, ranks, job.first_step - 1, empty)


def changes_of(shard: Shard) -> ChangeLog:
    """Return the log of what changed since the shard's last checkpoint, which goes on where its memory does."""
    return ChangeLog(shard, shard.words[CHANGES : CHANGES + 1] if isinstance(shard, RecoverableShard) else None)


def take_over(run: Run, server: Sender, file: int, empty: Empty) -> tuple[RecoverableShard, Repairs]:
    """Return the shard of a process that was killed, and what was repaired.

    Raises MemoryFileError if it cannot be trusted, PoisonError if another process had died at the same request.
    """
    layout, cluster = embedding_layout(run), run.cluster
    servers, ranks = cluster.embedding_servers, cluster.nn_workers
    shard, repairs = RecoverableShard.attach(file, layout, server.index, servers, ranks, empty, MOST_DEATHS)
    log.info("took over %d rows; the last process was at: %s", repairs.rows, repairs.request)
    return shard, repairs


def restore_windows(watermarks: Watermarks, shard: RecoverableShard) -> None:
    """Set the windows of applied steps to what the shard says."""
    for window, (watermark, above) in zip(watermarks.windows, shard.applied.windows(), strict=True):
        window.watermark, window.above = watermark, above


def unsaid_keys(shard: RecoverableShard, watermarks: Watermarks) -> dict[BatchId, list[NewKeys]]:
    """Return each rank's last look-up that has no update yet, with its new keys: its answer may not have been sent."""
    last = {rank: answer for rank in range(len(watermarks.windows)) if (answer := shard.answers.last(rank))}
    return {
        BatchId(TRAIN, step, rank): new for rank, (step, new) in last.items() if shard.applied.is_looked_up(rank, step)
    }


def load_checkpoint(shard: Shard, changes: ChangeLog, folder: Place, progress: Progress) -> int:
    """Add the rows of a checkpoint that belong to the shard; returns their number, those that found no room included.

    Raises CheckpointError for files that are damaged or do not fit.
    """
    # Without a table for them, dense weights are in the checkpoint's dense folder too, as they are.
    chain = read_chain(folder)
    files = chain.row_files(with_dense=shard.layout.dense_group is not None)
    rows = load_shard(shard, files, progress)
    load_sightings(shard, chain.folders[-1], chain.manifest)
    changes.loaded(chain.manifest.step)
    # Rows that found no room in their partition are counted and shown; they are not missing from the checkpoint.
    rows += sum(counters.left_out for counters in shard.counters().values())
    log.info("loaded %d rows from %s", rows, folder)
    return rows


def load_first_rows(shard: Shard, warm: WarmStart, progress: Progress) -> int:
    """Add the rows that a run begins with and that belong to the shard; returns their number.

    Raises CheckpointError and DataError for files that are damaged, have changed, or do not fit.
    """
    tables: dict[str, list[str]] = {}
    for each in warm.tables:
        tables.setdefault(each.source, []).append(each.name)
    rows = WarmRows(shard, tables, warm.states, progress)
    if warm.checkpoint is not None and tables:
        folder = place_of(warm.checkpoint)
        rows.load(read_chain(folder).row_files(with_dense=False))
    for source in warm.vectors:
        _add_vectors(rows, shard, source)
    return rows.rows


def _add_vectors(rows: WarmRows, shard: Shard, source: TakenVectors) -> None:
    columns = VectorColumns(source.files, source.id, source.vector, source.rows, source.made == "text")
    dim = next(group.dim for group in shard.layout.groups for table in group.tables if table.name == source.name)
    for batch in read_vectors(source.path, columns, dim, source.name, source.made):
        rows.add(source.name, batch.ids, batch.vectors, batch.where, batch.first)

"""The initial rows of an embedding server: none, those of the process before it, or loaded ones."""

import logging
import time
from concurrent.futures import Executor
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.control.position import TRAIN
from persia_cli.data.read.vectors import VectorColumns, read_vectors
from persia_cli.errors import RoleError
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job, retains_memory
from persia_cli.plan.warm_start import WarmStart
from persia_cli.storage.locations import Location, location_of
from persia_cli.store.checkpoints.frequency_files import load_frequencies
from persia_cli.store.checkpoints.manifest import read_manifest
from persia_cli.store.checkpoints.row_files import Progress, load_shard
from persia_cli.store.checkpoints.saved_rows import saved_rows
from persia_cli.store.checkpoints.warm_rows import WarmRows
from persia_cli.store.cold.cold_rows import ColdStorage
from persia_cli.store.cold.folders import clear, leave, require_space, run_folder, server_folder
from persia_cli.store.recovery import Repairs, attach, create
from persia_cli.store.requests import NewKeys
from persia_cli.store.shard import Shard
from persia_cli.wire.message import BatchId, Sender

log = logging.getLogger(__name__)

MAX_DEATHS = 1
"""Maximum number of processes that may die at the same request; the next one would die too."""


def shard_of(
    run: Run, job: Job, server: Sender, file: int | None, empty: Empty, readers: Executor
) -> tuple[Shard, Repairs | None]:
    """Return the shard of the process before and its repairs, or an empty shard and None; `readers` read rows on disks.

    Raise RoleError or MemoryFileError if the rows of the process before cannot be taken over, PoisonError if two
    processes died at the same request, ConfigError or DiskError if rows that leave memory cannot be stored.
    """
    cluster, last_step = run.cluster, job.first_step - 1
    layout = embedding_layout(run)
    part = layout, server.index, cluster.embedding_servers
    cold = _cold_storage(run, job, server, readers)
    if server.incarnation > 1:
        if file is None:
            raise RoleError("the rows of this server ended with its first process: its memory was not in a shared file")
        shard, repairs = attach(file, *part, cluster.nn_workers, empty, MAX_DEATHS, cold)
        log.info("took over %d rows; the last process was at: %s", repairs.rows, repairs.request)
        return shard, repairs
    if file is not None:
        return create(file, *part, cluster.nn_workers, last_step, empty, cold), None
    if retains_memory(run, server.role):
        log.warning("server memory will not survive a crash: start the server with --supervise")
    shard = Shard(*part, ranks=cluster.nn_workers, empty=empty, cold_storage=cold)
    shard.begin_cold()
    shard.applied.begin(last_step)
    return shard, None


def _cold_storage(run: Run, job: Job, server: Sender, readers: Executor) -> ColdStorage | None:
    """Return the place of rows that leave the memory of a server, None if they are lost.

    A server's first process removes what an earlier start of the run has left there. Raise ConfigError if the disk has
    too little space for this server's part.
    """
    cold, servers = run.embedding.cold, run.cluster.embedding_servers
    if cold is None:
        return None
    folder = run_folder(cold.path, Path(job.run_dir))
    if server.incarnation == 1:
        clear(folder, server.index, servers)
        require_space(cold.path, folder, -(-cold.size // servers))
    return ColdStorage(server_folder(folder, server.index), cold.threads, readers.map, time.monotonic_ns)


def close_shard(shard: Shard, run: Run, job: Job, index: int) -> None:
    """Remove the files of a server's rows on disks, which no process needs any more."""
    if run.embedding.cold is not None:
        shard.close()
        leave(run_folder(run.embedding.cold.path, Path(job.run_dir)), index)


def unanswered_lookups(shard: Shard, ranks: int) -> dict[BatchId, list[NewKeys]]:
    """Return each rank's last look-up without an update, and its new keys: its answer may not have been sent."""
    last = {rank: answer for rank in range(ranks) if (answer := shard.answers.last(rank))}
    return {
        BatchId(TRAIN, step, rank): new for rank, (step, new) in last.items() if shard.applied.is_looked_up(rank, step)
    }


def load_checkpoint(shard: Shard, folder: Location, progress: Progress) -> int:
    """Add the rows of a checkpoint that belong to the shard; return their number, including those without space.

    Raise CheckpointError for files that are damaged or do not fit.
    """
    # Without a table for dense weights, they are only in the checkpoint's dense folder.
    manifest = read_manifest(folder)
    files = saved_rows(folder, manifest, with_dense=shard.layout.dense_group is not None)
    rows = load_shard(shard, files, progress)
    load_frequencies(shard, folder, manifest)
    # Rows without space in their partition are counted and reported; they do not count as missing.
    rows += sum(counters.left_out for counters in shard.counters().values())
    log.info("loaded %d rows from %s", rows, folder)
    return rows


def load_first_rows(shard: Shard, warm: WarmStart, progress: Progress) -> int:
    """Add the rows of a warm start that belong to the shard; return their number.

    Raise CheckpointError and DataError for files that are damaged, have changed, or do not fit.
    """
    tables: dict[str, list[str]] = {}
    for table in warm.tables:
        tables.setdefault(table.source, []).append(table.name)
    rows = WarmRows(shard, tables, warm.states, progress)
    if warm.checkpoint is not None and tables:
        folder = location_of(warm.checkpoint)
        rows.load(saved_rows(folder, read_manifest(folder), with_dense=False))
    for source in warm.vectors:
        columns = VectorColumns(source.files, source.id, source.vector, source.rows, source.made == "text")
        dim = next(group.dim for group in shard.layout.groups for table in group.tables if table.name == source.name)
        for batch in read_vectors(source.path, columns, dim, source.name, source.made):
            rows.add(source.name, batch.ids, batch.vectors, batch.where, batch.first)
    return rows.rows

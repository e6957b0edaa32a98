"""The first rows of an embedding server: of a checkpoint, or of a saved model or vectors that a run begins with."""

import logging

from persia_cli.data.vectors import VectorColumns, read_vectors
from persia_cli.plan.warm_start import TakenVectors, WarmStart
from persia_cli.storage.places import Place, place_of
from persia_cli.store.checkpoints.chain import read_chain
from persia_cli.store.checkpoints.changes import ChangeLog
from persia_cli.store.checkpoints.row_files import Progress, load_shard
from persia_cli.store.checkpoints.sighting_files import load_sightings
from persia_cli.store.checkpoints.warm_rows import WarmRows
from persia_cli.store.shard import Shard

log = logging.getLogger(__name__)


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

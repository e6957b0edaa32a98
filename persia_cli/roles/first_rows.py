"""The first rows of an embedding server in a run that begins with a saved model or with vectors."""

from persia_cli.data.vectors import VectorColumns, read_vectors
from persia_cli.plan.warm_start import TakenVectors, WarmStart
from persia_cli.storage.places import place_of
from persia_cli.store.chain import read_chain
from persia_cli.store.shard import Shard
from persia_cli.store.snapshot import Progress
from persia_cli.store.warm_rows import WarmRows


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

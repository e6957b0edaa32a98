"""Lists of the best items for each user of a file, by exact or approximate search, in batches."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from persia_cli.config.schema import ParquetDataset, PredictSplit, Run
from persia_cli.data.read.batch import Batch, assemble
from persia_cli.data.read.row_groups import GroupedWriter
from persia_cli.data.read.scan import scan
from persia_cli.data.read.scores_file import KeptColumns
from persia_cli.data.read.source import open_source
from persia_cli.disk import replacing
from persia_cli.plan.columns import items_of, sparse_features
from persia_cli.retrieval.approximate import NearItems
from persia_cli.retrieval.evaluation import side_of
from persia_cli.retrieval.known_items import KnownItems, Progress
from persia_cli.retrieval.question import in_own_lists
from persia_cli.retrieval.ranking import (
    USERS,
    Floats,
    Numbers,
    Pairs,
    best_items,
    distinct_pairs,
    items_of_block,
    scores_of,
    slots_of,
)
from persia_cli.retrieval.towers import Towers


def users_in(run: Run, path: str, keep_seen: bool) -> ParquetDataset:
    """Return the data set of the users in some files, which have the user's features alone."""
    dataset, items = run.dataset, items_of(run.model)
    assert isinstance(dataset, ParquetDataset)
    changed = {
        "path": path,
        "sparse": tuple(each for each in dataset.sparse if each.name not in items),
        "split": PredictSplit(kind="predict"),
        "group_by": None if keep_seen else dataset.group_by,
    }
    return dataset.model_copy(update=changed | dict.fromkeys(("weight", "generator", "recipe")))


class ItemLists:
    """The best items of users, by a model whose vectors of items are computed once."""

    def __init__(self, run: Run, towers: Towers, items: KnownItems, keep_seen: bool, approximate: bool) -> None:
        """Compute the vectors; raises UserError if they are not finite."""
        self._run, self._towers, self._items, self._keep_seen = run, towers, items, keep_seen
        self._vectors = side_of(items.samples, 1, towers.vectors)
        self._near = NearItems(self._vectors) if approximate else None

    def write(self, users: ParquetDataset, keep: Sequence[str], output: Path, top: int, progress: Progress) -> int:
        """Write a row for each user, in the order of the files; return their number.

        A row has the columns to keep, the best items, best first, and scores, which are the model's logits. Items are
        left out that the user has seen in training, or has in lists of that row. The file appears when it is complete.
        Raise DataError for files that do not fit the model, DiskError.
        """
        kept, values = KeptColumns(scan(users), keep), self._items.values
        columns = pa.field("items", pa.list_(values.type)), pa.field("scores", pa.list_(pa.float32()))
        schema = pa.schema([*kept.fields, *columns])
        source = open_source(users, "eval", self._run.seed, self._run.links, queries=True)
        try:
            with replacing(output) as part, GroupedWriter(part, 8 * USERS) as writer:
                writer.write(schema.empty_table())
                for start in range(0, source.rows, USERS):
                    batch = source.read(0, start, min(start + USERS, source.rows))
                    items, scores = self._best(self._whole(batch), top)
                    offsets = pa.array(np.r_[0, np.cumsum((items >= 0).sum(axis=1))], pa.int32())
                    own = values.take(pa.array(items[items >= 0])), pa.array(scores[items >= 0])
                    lists = [pa.ListArray.from_arrays(offsets, each) for each in own]
                    writer.write(pa.Table.from_arrays([*kept.take(batch.size), *lists], schema=schema))
                    progress(start + batch.size, source.rows)
        finally:
            source.close()
            kept.close()
        return source.rows

    def _whole(self, batch: Batch) -> Batch:
        """Return samples of users with the items' features too, of which they have no ids."""
        names, own = items_of(self._run.model), iter(batch.lists)
        none = np.empty(0, np.uint64), np.zeros(batch.size + 1, np.int64)
        every = [none if each.name in names else next(own) for each in sparse_features(self._run)]
        ids, offsets = zip(*every, strict=True)
        return assemble(batch.dense, batch.labels, None, ids, offsets, batch.query_ids)

    def _best(self, batch: Batch, top: int) -> tuple[Numbers, Floats]:
        """Return the best items int64 [n, top] of each user, -1 after the last, and their logits."""
        users, items = side_of(batch, 0, self._towers.vectors), self._vectors
        hidden, top = self._hidden(batch), min(top, len(items))
        numbers = self._near.lists(users, hidden, top) if self._near else best_items(users, items, hidden, top)
        return numbers, self._towers.logits(scores_of(users, items, numbers))

    def _hidden(self, batch: Batch) -> Pairs:
        """Return pairs of a place in the batch and an item: those seen in training, and those in lists of the row."""
        if self._keep_seen:
            return Pairs(*np.empty((2, 0), np.int64))
        pairs = [in_own_lists(self._run, batch, self._items.ids, self._items.table)]
        if batch.query_ids is not None:
            pairs.append(items_of_block(self._items.seen, slots_of(self._items.users, batch.query_ids)))
        return distinct_pairs(*map(np.concatenate, zip(*pairs, strict=True)))

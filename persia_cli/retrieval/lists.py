"""Lists of the best items for each user of a file, by exact or approximate search, in batches.

Items are those of a run's data, by the feature that identifies them; those that a user has seen in training are known.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from persia_cli.config.schema import ParquetDataset, PredictSplit, Run, SparseFeature
from persia_cli.data.read.batch import Batch, assemble, join
from persia_cli.data.read.decode import decode_ids
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.row_groups import GroupedWriter
from persia_cli.data.read.scan import ParquetScan, scan
from persia_cli.data.read.scores_file import KeptColumns
from persia_cli.data.read.source import open_source
from persia_cli.disk import replacing
from persia_cli.errors import DataError, UserError
from persia_cli.plan.columns import items_of, sparse_features
from persia_cli.retrieval.approximate import NearItems
from persia_cli.retrieval.evaluation import vectors_of
from persia_cli.retrieval.question import Catalogue, in_listed_items, samples_with_items, with_whole_lists
from persia_cli.retrieval.ranking import (
    USERS,
    Floats,
    Ids,
    Numbers,
    Pairs,
    best_items,
    distinct_pairs,
    items_of_block,
    scores_of,
    slots_of,
)
from persia_cli.retrieval.towers import Towers

Progress = Callable[[int, int], None]
"""Called with the amount done and the total."""


class KnownItems(NamedTuple):
    """Items, numbered by their ids, and the pairs of users and items of the training split, by the users' numbers."""

    ids: Ids
    samples: Batch
    """The first sample of each item, for the model."""
    values: Any
    """The value of each item in the data, a pyarrow.Array."""
    table: str
    """The table of the items' rows."""
    users: Ids
    """Query ids, ascending."""
    seen: Pairs


def read_items(run: Run, name: str | None, progress: Progress) -> KnownItems:
    """Read both splits of a run's data, for items identified by the feature `name`, or else the model's first of items.

    Each pair of a user and an item takes 16 bytes. Raise UserError for a feature that does not identify items,
    DataError for data without any.
    """
    assert isinstance(run.dataset, ParquetDataset)
    contents, names = scan(run.dataset), [feature.name for feature in sparse_features(run)]
    item_features = (contents.settled.sparse[names.index(name)] for name in items_of(run.model))
    single = {
        feature.name: feature
        for feature in item_features
        if not feature.makes_lists and feature.column_name not in contents.lists
    }
    if name not in (None, *single) or not single:
        of = ", ".join(single) or "none, so this model's items cannot be listed"
        raise UserError(f"--item needs a feature of the model's items with one value per row; there is {of}")
    feature = single[name or next(iter(single))]
    number, catalogue, done = names.index(feature.name), Catalogue(), 0
    users, items = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for split in ("eval", "train"):
        for batch in samples_with_items(run, split, [number]):
            numbers = catalogue.add(batch.lists[number][0], batch)
            if split == "train" and batch.query_ids is not None:
                is_known = batch.query_ids != np.uint64(NULL_ID)
                users.append(batch.query_ids[is_known])
                items.append(numbers[is_known])
            progress(done := done + batch.size, sum(contents.split_rows.eval) + sum(contents.split_rows.train))
    if not catalogue.numbers:
        raise DataError(f"no sample has a value of {feature.name}, so there are no items to list")
    ids = np.fromiter(catalogue.numbers, np.uint64, len(catalogue.numbers))
    order = np.argsort(ids)
    known, queries = np.unique(np.concatenate(users), return_inverse=True)
    seen = distinct_pairs(queries, np.argsort(order)[np.concatenate(items)])
    samples, values = join(catalogue.firsts).take(order), _values(contents, feature, ids[order])
    return KnownItems(ids[order], samples, values, feature.table_name, known, seen)


def _values(contents: ParquetScan, feature: SparseFeature, known: Ids) -> Any:
    """Read the column of the items' feature, and return a value of each item."""
    kept = KeptColumns(contents, [feature.column_name])
    values: dict[int, Any] = {}
    for group in contents.groups:
        for column in kept.take(group.rows):
            # A null has an id here, so that each row has one.
            plain = feature.model_copy(update={"missing_id": None})
            ids = decode_ids(column, plain, False, group, None, Counter()).values
            ids, first = np.unique(ids, return_index=True)
            values.update(zip(slots_of(known, ids).tolist(), column.take(pa.array(first)).to_pylist(), strict=True))
    kept.close()
    return pa.array([values[number] for number in range(known.size)], kept.fields[0].type)


def users_in(run: Run, path: str, keep_seen: bool) -> ParquetDataset:
    """Return the data set of the users in some files, which have the user's features alone."""
    dataset, items = run.dataset, items_of(run.model)
    assert isinstance(dataset, ParquetDataset)
    changed = {
        "path": path,
        "sparse": tuple(feature for feature in dataset.sparse if feature.name not in items),
        "split": PredictSplit(kind="predict"),
        "group_by": None if keep_seen else dataset.group_by,
    }
    return dataset.model_copy(update=changed | dict.fromkeys(("weight", "generator", "recipe")))


class ItemLists:
    """The best items of users, by a model whose vectors of items are computed once."""

    def __init__(self, run: Run, towers: Towers, items: KnownItems, keep_seen: bool, approximate: bool) -> None:
        """Compute the vectors; raises UserError if they are not finite."""
        self._run, self._towers, self._items, self._keep_seen = run, towers, items, keep_seen
        self._vectors = vectors_of(items.samples, towers.items)
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
        source = open_source(with_whole_lists(users), "eval", self._run.seed, self._run.links, queries=True)
        try:
            with replacing(output) as part, GroupedWriter(part, 8 * USERS) as writer:
                writer.write(schema.empty_table())
                for start in range(0, source.rows, USERS):
                    batch = source.read(0, start, min(start + USERS, source.rows))
                    items, scores = self._best(self._whole(batch), top)
                    offsets = pa.array(np.r_[0, np.cumsum((items >= 0).sum(axis=1))], pa.int32())
                    listed = values.take(pa.array(items[items >= 0])), pa.array(scores[items >= 0])
                    lists = [pa.ListArray.from_arrays(offsets, column) for column in listed]
                    writer.write(pa.Table.from_arrays([*kept.take(batch.size), *lists], schema=schema))
                    progress(start + batch.size, source.rows)
        finally:
            source.close()
            kept.close()
        return source.rows

    def _whole(self, batch: Batch) -> Batch:
        """Return samples of users with the items' features too, of which they have no ids."""
        names, ids_there = items_of(self._run.model), iter(batch.lists)
        none = np.empty(0, np.uint64), np.zeros(batch.size + 1, np.int64)
        every = [none if feature.name in names else next(ids_there) for feature in sparse_features(self._run)]
        ids, offsets = zip(*every, strict=True)
        return assemble(batch.dense, batch.labels, None, ids, offsets, batch.query_ids)

    def _best(self, batch: Batch, top: int) -> tuple[Numbers, Floats]:
        """Return the best items int64 [n, top] of each user, -1 after the last, and their logits."""
        users, items = vectors_of(batch, self._towers.users), self._vectors
        hidden, top = self._hidden(batch), min(top, len(items))
        numbers = self._near.lists(users, hidden, top) if self._near else best_items(users, items, hidden, top)
        return numbers, self._towers.logits(scores_of(users, items, numbers))

    def _hidden(self, batch: Batch) -> Pairs:
        """Return pairs of a place in the batch and an item: those seen in training, and those in lists of the row."""
        if self._keep_seen:
            return Pairs(*np.empty((2, 0), np.int64))
        pairs = [in_listed_items(self._run, batch, self._items.ids, self._items.table)]
        if batch.query_ids is not None:
            pairs.append(items_of_block(self._items.seen, slots_of(self._items.users, batch.query_ids)))
        return distinct_pairs(*map(np.concatenate, zip(*pairs, strict=True)))

"""The items of a run's data, by the feature that identifies them, and those that each user has seen in training."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from persia_cli.config.schema import ParquetDataset, Run, SparseFeature
from persia_cli.data.read.batch import Batch, join
from persia_cli.data.read.decode import decode_ids
from persia_cli.data.read.reserved_ids import NULL_ID
from persia_cli.data.read.scan import ParquetScan, scan
from persia_cli.data.read.scores_file import KeptColumns
from persia_cli.errors import DataError, UserError
from persia_cli.plan.columns import items_of, sparse_features
from persia_cli.retrieval.question import Catalogue, samples_with_items
from persia_cli.retrieval.ranking import Ids, Pairs, distinct_pairs, slots_of

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
    found, names = scan(run.dataset), [each.name for each in sparse_features(run)]
    own = (found.settled.sparse[names.index(each)] for each in items_of(run.model))
    single = {each.name: each for each in own if not each.makes_lists and each.column_name not in found.lists}
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
            progress(done := done + batch.size, sum(found.split_rows.eval) + sum(found.split_rows.train))
    if not catalogue.numbers:
        raise DataError(f"no sample has a value of {feature.name}, so there are no items to list")
    ids = np.fromiter(catalogue.numbers, np.uint64, len(catalogue.numbers))
    order = np.argsort(ids)
    known, queries = np.unique(np.concatenate(users), return_inverse=True)
    seen = distinct_pairs(queries, np.argsort(order)[np.concatenate(items)])
    samples, values = join(catalogue.firsts).take(order), _values(found, feature, ids[order])
    return KnownItems(ids[order], samples, values, feature.table_name, known, seen)


def _values(found: ParquetScan, feature: SparseFeature, known: Ids) -> Any:
    """Read the column of the items' feature, and return a value of each item."""
    kept = KeptColumns(found, [feature.column_name])
    values: dict[int, Any] = {}
    for group in found.groups:
        for column in kept.take(group.rows):
            # A null has an id here, so that each row has one.
            plain = feature.model_copy(update={"missing_id": None})
            ids = decode_ids(column, plain, False, group, None, Counter()).values
            ids, first = np.unique(ids, return_index=True)
            values.update(zip(slots_of(known, ids).tolist(), column.take(pa.array(first)).to_pylist(), strict=True))
    kept.close()
    return pa.array([values[place] for place in range(known.size)], kept.fields[0].type)

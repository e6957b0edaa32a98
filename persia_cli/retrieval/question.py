"""The question of a retrieval evaluation: all items of a data set, the queries, and their relevant items."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.config.schema.base import MOST
from persia_cli.config.schema.sequences import Sequential
from persia_cli.control.position import SplitName
from persia_cli.data.read.batch import Batch, assemble, join
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.item_keys import has_item, item_keys
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError
from persia_cli.kernels.rows.splitmix import mix64
from persia_cli.plan.columns import items_of, sparse_features
from persia_cli.retrieval.ranking import Ids, Numbers, Pairs, distinct_pairs, items_of_block, slots_of

SAMPLES = 8192
"""Samples that are read, or computed, at a time."""

Progress = Callable[[], None]
"""Called before each piece of work that takes a while."""


class Question(NamedTuple):
    """Queries and items, numbered, with a sample of each for the model."""

    items: Batch
    """The first sample of each item."""
    users: Batch
    """The newest positive evaluation sample of each query."""
    relevant: Pairs
    """At least one of each query; none is hidden."""
    hidden: Pairs
    """Items that are not ranked for a query."""
    seen_share: float
    """Fraction of all relevant pairs that are in the training split too."""
    popularity: Numbers
    """Number of positive training samples of each item."""


@dataclass(slots=True)
class Catalogue:
    """All distinct items with the first sample of each, numbered in the order of appearance until all are there."""

    numbers: dict[int, int] = field(default_factory=dict)
    firsts: list[Batch] = field(default_factory=list)

    def add(self, keys: NDArray[np.uint64], batch: Batch) -> Numbers:
        """Return the number of each sample's item, int64 [n]."""
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        is_new = np.array([key not in self.numbers for key in distinct.tolist()], np.bool_)
        for key in distinct[is_new].tolist():
            self.numbers[key] = len(self.numbers)
        if is_new.any():
            self.firsts.append(batch.take(first[is_new]))
        numbers = np.array([self.numbers[key] for key in distinct.tolist()], np.int64)
        return numbers[inverse]

    def shuffle(self) -> Numbers:
        """Return the final number of each item, a permutation by its key alone."""
        # Among equal scores the lower number is first: items of the evaluation, which come first, must not win for
        # that.
        keys = np.fromiter(self.numbers, np.uint64, len(self.numbers))
        places = np.empty(keys.size, np.int64)
        places[np.argsort(mix64(keys), kind="stable")] = np.arange(keys.size)
        return places


@dataclass(slots=True)
class AskingUsers:
    """The queries with a positive evaluation sample: by query id, or one for each such sample."""

    numbers: dict[int, int] = field(default_factory=dict)
    samples: list[Batch] = field(default_factory=list)
    found: list[Numbers] = field(default_factory=list)
    """The query of each of those samples."""

    def add(self, batch: Batch, positive: Numbers) -> Numbers:
        """Return the query of each positive sample of evaluation."""
        first = len(self.numbers)
        ids = range(first, first + len(positive)) if batch.query_ids is None else batch.query_ids[positive].tolist()
        numbers = np.array([self.numbers.setdefault(id_, len(self.numbers)) for id_ in ids], np.int64)
        if len(positive):
            # Of a query's samples in one batch the last is the newest, and no other is needed.
            _, last = np.unique(numbers[::-1], return_index=True)
            newest = len(numbers) - 1 - last
            self.samples.append(batch.take(positive[newest]))
            self.found.append(numbers[newest])
        return numbers

    def keep(self, count: int) -> Numbers:
        """Keep at most so many queries, always the same ones; return the new number of each, -1 for the others."""
        chosen = np.random.default_rng(0).permutation(len(self.numbers))[:count]
        places = np.full(len(self.numbers), -1)
        places[np.sort(chosen)] = np.arange(chosen.size)
        self.numbers = {
            id_: new_number for id_, number in self.numbers.items() if (new_number := int(places[number])) >= 0
        }
        stays = [np.flatnonzero(places[numbers] >= 0) for numbers in self.found]
        self.samples = [batch.take(rows) for batch, rows in zip(self.samples, stays, strict=True)]
        self.found = [places[numbers[rows]] for numbers, rows in zip(self.found, stays, strict=True)]
        return places

    def known(self, batch: Batch) -> Numbers:
        """Return the query of each sample of training, -1 for those of none."""
        if batch.query_ids is None:
            return np.full(batch.size, -1)
        return np.array([self.numbers.get(id_, -1) for id_ in batch.query_ids.tolist()], np.int64)

    def newest(self) -> Batch:
        """Return the newest sample of each query, by number."""
        newest = np.empty(len(self.numbers), np.int64)
        numbers = np.concatenate(self.found)
        newest[numbers] = np.arange(len(numbers))  # of several, the last one stays
        return join(self.samples).take(newest)


def ask(run: Run, keep_seen: bool | None, progress: Progress = lambda: None, limit: int | None = None) -> Question:
    """Read both splits of a run's data once, for a two-tower network.

    A query's relevant items are those of its evaluation samples with a label of 1/2 or more. As in lists of `persia
    recommend`, items of its training samples and of lists in its own sample are hidden, unless `keep_seen`: they are
    not ranked, and do not count as relevant. Of networks of sequences, elements of sequences are items too. A query
    without another relevant item does not count. Samples with a null item are left out, and those with a null query
    have no query. `limit` is the maximum number of queries; None: all.
    With None for `keep_seen`, nothing is hidden if no query would be left otherwise. Raise DataError if none is left.
    """
    names = items_of(run.model)
    features = [number for number, feature in enumerate(sparse_features(run)) if feature.name in names]
    catalogue, queries = Catalogue(), AskingUsers()
    relevant, seen, bought = [], [np.empty((2, 0), np.int64)], [np.empty(0, np.int64)]
    for batch in samples_with_items(run, "eval", features, progress):
        items, positive = catalogue.add(item_keys(batch, features), batch), _positive(batch)
        _add_listed(catalogue, run, batch, features)
        if batch.query_ids is not None:
            positive = positive[batch.query_ids[positive] != np.uint64(NULL_ID)]
        relevant.append(np.stack([queries.add(batch, positive), items[positive]]))
    if not queries.numbers:
        raise DataError("no evaluation sample is positive, so there is nothing to retrieve; give dataset.split others")
    if limit is not None and limit < len(queries.numbers):
        kept = queries.keep(limit)
        relevant = [np.stack([kept[asking], items])[:, kept[asking] >= 0] for asking, items in relevant]
    for batch in samples_with_items(run, "train", features, progress):
        items = catalogue.add(item_keys(batch, features), batch)
        _add_listed(catalogue, run, batch, features)
        bought.append(items[_positive(batch)])
        asking = queries.known(batch)
        seen.append(np.stack([asking, items])[:, asking >= 0])
    places = catalogue.shuffle()
    wanted, trained = (
        distinct_pairs(asking, places[items])
        for asking, items in (np.concatenate(parts, axis=1) for parts in (relevant, seen))
    )
    counts = np.bincount(places[np.concatenate(bought)], minlength=places.size)
    every, users = join(catalogue.firsts).take(np.argsort(places)), queries.newest()
    new = _without(wanted, trained, places.size)
    seen_share = 1.0 - len(new.queries) / len(wanted.queries)
    hidden = Pairs(*np.empty((2, 0), np.int64))
    if not keep_seen:
        hidden = distinct_pairs(*np.concatenate([trained, _in_lists(run, users, every, features)], axis=1))
        unseen = _without(new, hidden, places.size)
        if keep_seen is None and not len(unseen.queries):
            hidden = Pairs(*np.empty((2, 0), np.int64))
        else:
            wanted = unseen
    if not len(wanted.queries):
        raise DataError(
            "every positive evaluation sample is of an item that its user has seen before, so there is nothing new to "
            "retrieve; give dataset.split others, or --keep-seen"
        )
    asking = np.unique(wanted.queries)
    hidden = items_of_block(hidden, asking)
    wanted = Pairs(np.searchsorted(asking, wanted.queries), wanted.items)
    return Question(every, users.take(asking), wanted, hidden, seen_share, counts)


def _add_listed(catalogue: Catalogue, run: Run, batch: Batch, features: list[int]) -> None:
    """Add the elements of a batch's sequences to the items, for networks whose items are ids alone."""
    if not isinstance(run.model, Sequential):
        return
    names = [feature.name for feature in sparse_features(run)]
    ids = np.unique(batch.lists[names.index(run.model.sequence)][0])
    ids = ids[ids != np.uint64(NULL_ID)]
    is_item = [name == run.model.candidate for name in names]
    none, one = np.zeros(ids.size + 1, np.int64), np.arange(ids.size + 1)
    samples = assemble(
        np.zeros((ids.size, batch.dense.shape[1]), np.float32),
        np.zeros((ids.size, batch.labels.shape[1]), np.float32),
        None,
        [ids if each else ids[:0] for each in is_item],
        [one if each else none for each in is_item],
        None if batch.query_ids is None else np.full(ids.size, NULL_ID, np.uint64),
    )
    catalogue.add(item_keys(samples, features), samples)


def _without(pairs: Pairs, others: Pairs, items: int) -> Pairs:
    """Return the pairs that are not among others."""
    stays = ~np.isin(pairs.queries * items + pairs.items, others.queries * items + others.items)
    return Pairs(pairs.queries[stays], pairs.items[stays])


def _in_lists(run: Run, users: Batch, items: Batch, features: list[int]) -> Pairs:
    """Return `in_listed_items` for items that their first feature with one id each identifies."""
    single = [number for number in features if (np.diff(items.lists[number][1]) == 1).all()]
    if not single:
        return Pairs(*np.empty((2, 0), np.int64))
    table = sparse_features(run)[single[0]].table_name
    return in_listed_items(run, users, items.lists[single[0]][0], table)


def in_listed_items(run: Run, users: Batch, items: Ids, table: str) -> Pairs:
    """Return pairs of a sample and an item, of these ids [n] of a table, that a feature of the sample's user lists."""
    pairs, (known, numbers) = [np.empty((2, 0), np.int64)], np.unique(items, return_inverse=True)
    order = np.argsort(numbers, kind="stable")
    by_id = Pairs(numbers[order], order)
    for feature, (ids, offsets) in zip(sparse_features(run), users.lists, strict=True):
        if feature.table_name == table and feature.name not in items_of(run.model):
            listed = items_of_block(by_id, slots_of(known, ids))
            samples = np.repeat(np.arange(users.size), np.diff(offsets))
            pairs.append(np.stack([samples[listed.queries], listed.items]))
    return distinct_pairs(*np.concatenate(pairs, axis=1))


def _positive(batch: Batch) -> Numbers:
    return np.flatnonzero(batch.labels[:, 0] >= 0.5)


def with_whole_lists(dataset: ParquetDataset) -> ParquetDataset:
    """Return a data set that reads whole lists: users have seen all of them, of which a network may read fewer."""
    whole = tuple(feature.model_copy(update={"max_length": feature.max_length and MOST}) for feature in dataset.sparse)
    return dataset.model_copy(update={"sparse": whole})


def samples_with_items(
    run: Run, split: SplitName, features: list[int], progress: Progress = lambda: None
) -> Iterator[Batch]:
    """Yield the samples of a split that have an item, which these features make; lists are whole."""
    dataset = with_whole_lists(run.dataset) if isinstance(run.dataset, ParquetDataset) else run.dataset
    source = open_source(dataset, split, run.seed, run.links, queries=True)
    try:
        for start in range(0, source.rows, SAMPLES):
            progress()
            batch = source.read(0, start, min(start + SAMPLES, source.rows))
            there = has_item(batch, features)
            yield batch if there.all() else batch.take(np.flatnonzero(there))
    finally:
        source.close()

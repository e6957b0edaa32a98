"""A saved model judged by retrieval: each query's items among all items of the data set."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import Run
from persia_cli.control.position import SplitName
from persia_cli.data.batch import Batch
from persia_cli.data.item_keys import item_keys
from persia_cli.data.source import open_source
from persia_cli.errors import ConfigError, DataError
from persia_cli.plan.columns import items_of, sparse_features
from persia_cli.retrieval.approximate import ApproximateFigures, require_faiss, search
from persia_cli.retrieval.ranking import Floats, Numbers, Pairs, distinct_pairs, figures_of, ranks_of
from persia_cli.retrieval.towers import SavedTowers
from persia_cli.storage.places import Place

SAMPLES = 8192
"""Samples that are read and computed at a time."""


@dataclass(frozen=True, slots=True)
class RetrievalFigures:
    """The figures of a model and of ranking by popularity alone, over so many queries and items."""

    model: dict[str, float]
    popularity: dict[str, float]
    queries: int
    items: int
    relevant: int
    approximate: ApproximateFigures | None = None


@dataclass(slots=True)
class Catalogue:
    """All distinct items, numbered as they come, with the vector of each as of its first sample."""

    numbers: dict[int, int] = field(default_factory=dict)
    parts: list[Floats] = field(default_factory=list)

    def add(self, keys: NDArray[np.uint64], vectors: Floats) -> Numbers:
        """Return the number of each sample's item, int64 [n]."""
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        is_new = np.array([key not in self.numbers for key in distinct.tolist()], np.bool_)
        for key in distinct[is_new].tolist():
            self.numbers[key] = len(self.numbers)
        self.parts.append(vectors[first[is_new]])
        found = np.array([self.numbers[key] for key in distinct.tolist()], np.int64)
        return found[inverse]

    @property
    def vectors(self) -> Floats:
        """Vectors float32 [items, width], by number."""
        return np.concatenate(self.parts)


@dataclass(slots=True)
class AskingUsers:
    """The queries with a positive evaluation sample: by query id, or one for each such sample."""

    numbers: dict[int, int] = field(default_factory=dict)
    vectors: dict[int, Floats] = field(default_factory=dict)

    def add(self, batch: Batch, positive: Numbers, users: Floats) -> Numbers:
        """Return the query of each positive sample of evaluation, whose newest one is what its user is known by."""
        first = len(self.numbers)
        ids = range(first, first + len(positive)) if batch.query_ids is None else batch.query_ids[positive].tolist()
        found = np.array([self.numbers.setdefault(id_, len(self.numbers)) for id_ in ids], np.int64)
        self.vectors.update(zip(found.tolist(), users[positive], strict=True))
        return found

    def known(self, batch: Batch) -> Numbers:
        """Return the query of each sample of training, -1 for those of none."""
        if batch.query_ids is None:
            return np.full(batch.size, -1)
        return np.array([self.numbers.get(id_, -1) for id_ in batch.query_ids.tolist()], np.int64)


def judge(
    run: Run, checkpoint: Place, cuts: Sequence[int], keep_seen: bool = False, approximate: bool = False
) -> RetrievalFigures:
    """Rank all items of both splits for each query of the evaluation split, by the saved network and by popularity.

    A query's relevant items are those of its samples with a label of 1/2 or more; items of its training samples are not
    ranked, unless they are kept. Popularity is the number of such samples of training. Raises ConfigError for a network
    without two sides, DataError without a positive evaluation sample, UserError if the library is missing that searches
    `approximate`ly too.
    """
    if approximate:
        require_faiss()
    names = items_of(run.model)
    if not names:
        raise ConfigError(
            f"--retrieval needs a network with a vector of the user and one of the item, and model.kind="
            f"{run.model.kind} has none; train model.kind=two_tower or model.kind=sasrec"
        )
    features = [number for number, feature in enumerate(sparse_features(run)) if feature.name in names]
    towers, catalogue, queries = SavedTowers(run, checkpoint), Catalogue(), AskingUsers()
    relevant, seen, bought = [], [np.empty((2, 0), np.int64)], [np.empty(0, np.int64)]
    for batch in _batches(run, "eval"):
        vectors = towers.vectors(batch)
        items, positive = catalogue.add(item_keys(batch, features), vectors.items), _positive(batch)
        relevant.append(np.stack([queries.add(batch, positive, vectors.users), items[positive]]))
    if not queries.numbers:
        raise DataError("no evaluation sample is positive, so there is nothing to retrieve; give dataset.split others")
    for batch in _batches(run, "train"):
        items = catalogue.add(item_keys(batch, features), towers.vectors(batch).items)
        bought.append(items[_positive(batch)])
        asking = queries.known(batch)
        if not keep_seen:
            seen.append(np.stack([asking, items])[:, asking >= 0])
    wanted, hidden = (distinct_pairs(*np.concatenate(parts, axis=1)) for parts in (relevant, seen))
    users = np.stack([queries.vectors[number] for number in range(len(queries.numbers))])
    vectors_of_items, counts = catalogue.vectors, np.bincount(np.concatenate(bought), minlength=len(catalogue.numbers))

    def figures(users: Floats, items: Floats) -> dict[str, float]:
        return _figures(users, items, wanted, hidden, cuts)

    popular = figures(np.ones((len(users), 1), np.float32), counts.astype(np.float32)[:, None])
    return RetrievalFigures(
        figures(users, vectors_of_items),
        popular,
        len(users),
        len(vectors_of_items),
        len(wanted.queries),
        search(users, vectors_of_items, wanted, hidden, cuts) if approximate else None,
    )


def _figures(users: Floats, items: Floats, relevant: Pairs, seen: Pairs, cuts: Sequence[int]) -> dict[str, float]:
    ranks = ranks_of(lambda first, last: users[first:last] @ items.T, relevant, seen, len(users), len(items))
    return figures_of(ranks, relevant, cuts)


def _positive(batch: Batch) -> Numbers:
    return np.flatnonzero(batch.labels[:, 0] >= 0.5)


def _batches(run: Run, split: SplitName) -> Iterator[Batch]:
    source = open_source(run.dataset, split, run.seed, run.links, queries=True)
    try:
        for start in range(0, source.rows, SAMPLES):
            yield source.read(0, start, min(start + SAMPLES, source.rows))
    finally:
        source.close()

"""Generated samples with a planted model: a pure function of seed and row number."""

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import Generator
from persia_cli.control.position import MADE_UP
from persia_cli.data.read.batch import Batch, assemble, join
from persia_cli.data.read.random_bits import normal, salt, stream, uniform

_ROWS, _DENSE, _SPARSE, _LABEL, _DENSE_WEIGHTS, _ID_WEIGHTS = range(6)
_DENSE_FRACTION = 0.25
_FREQUENT = 300.0
_GRID = 1 << 14
_PIECE = 4096


class GeneratedRows:
    """An endless sequence of rows; a row's contents do not depend on the rows that are read with it.

    Ids of a feature of cardinality c are ranks 0..c-1 under a Zipf law. A label is 1 with probability
    sigmoid(bias + signal * z), where z has mean 0 and variance 1: a quarter of the variance is linear in the dense
    values, the rest a sum of one hashed weight per id. Weights of rare ids shrink, since no model could learn them.
    `with_queries`, samples with the same id of the first feature are of one query; without features all are.
    """

    def __init__(self, generator: Generator, tasks: int, seed: int, with_queries: bool = False) -> None:
        dense, features = generator.dense, len(generator.cardinalities)
        fraction = _DENSE_FRACTION if features and dense else float(features == 0)
        self._generator = generator
        self._with_queries = with_queries
        self._row_key = salt(seed, _ROWS)
        self._dense_keys = _keys(dense, _DENSE)
        self._sparse_keys = _keys(features, _SPARSE)
        self._label_keys = _keys(tasks, _LABEL)
        self._cardinalities = np.array(generator.cardinalities, np.float64).reshape(features, 1)
        self._dense_weights = [_spread(_keys(dense, seed, _DENSE_WEIGHTS, task), fraction) for task in range(tasks)]
        self._id_keys = [_keys(features, seed, _ID_WEIGHTS, task) for task in range(tasks)]
        self._moments = [self._moments_of(keys, 1.0 - fraction) for keys in self._id_keys]
        self._bias = _bias(generator.label_rate, generator.signal)

    def rows(self, start: int, stop: int) -> Batch:
        """Return rows [start, stop)."""
        return join([self._piece(first, min(first + _PIECE, stop)) for first in range(start, stop, _PIECE)])

    def _piece(self, start: int, stop: int) -> Batch:
        keys = stream(self._row_key, np.arange(start, stop, dtype=np.uint64))
        dense = np.ascontiguousarray(normal(stream(self._dense_keys, keys)).T, dtype=np.float32)
        ranks = zipf_ranks(uniform(stream(self._sparse_keys, keys)), self._cardinalities, self._generator.zipf)
        labels = np.empty((keys.size, len(self._id_keys)), np.float32)
        for task, chances in enumerate(uniform(stream(self._label_keys, keys))):
            labels[:, task] = chances < self.probability(task, dense, ranks)
        query_ids = (ranks[0] if len(ranks) else np.zeros_like(keys)) if self._with_queries else None
        return assemble(dense, labels, None, list(ranks), [None] * len(ranks), query_ids)

    def probability(self, task: int, dense: NDArray[np.float32], ranks: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the planted probability of a positive label, [n], of n samples: dense [n, D], ids [features, n]."""
        mean, scale = self._moments[task]
        z = np.zeros(len(dense))
        for part in (_id_weights(self._id_keys[task], ranks) - mean) * scale:
            z += part  # one by one: the sum of a row must not depend on the number of rows
        for number, weight in enumerate(self._dense_weights[task]):
            z += dense[:, number] * weight
        chances: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-(self._bias + self._generator.signal * z)))
        return chances

    def _moments_of(self, keys: NDArray[np.uint64], fraction: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return, per feature, the mean of its weights over the Zipf law, and the factor for an equal contribution."""
        grid = (np.arange(_GRID) + 0.5) / _GRID
        weights = _id_weights(keys, zipf_ranks(grid, self._cardinalities, self._generator.zipf))
        deviation = weights.std(axis=1, keepdims=True)
        target = (fraction / max(1, len(keys))) ** 0.5
        scale = np.divide(target, deviation, out=np.zeros_like(deviation), where=deviation > 0.0)
        return weights.mean(axis=1, keepdims=True), scale


class GeneratedSource:
    """One split of generated rows; every epoch is the same, since the rows are in random order already."""

    def __init__(self, generator: Generator, tasks: int, split: str, seed: int, with_queries: bool = False) -> None:
        self._rows = GeneratedRows(generator, tasks, seed, with_queries)
        self._first = 0 if split == "train" else generator.train_rows
        self.rows = generator.train_rows if split == "train" else generator.eval_rows
        self.train_data = MADE_UP
        self.counts: dict[str, int] = {}

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        """Return rows [start, stop), 0 <= start < stop <= rows."""
        if not 0 <= start < stop <= self.rows:
            raise ValueError(f"rows [{start}, {stop}) are not within [0, {self.rows})")
        return self._rows.rows(self._first + start, self._first + stop)

    def close(self) -> None:
        """Do nothing: no file is open."""


def zipf_ranks(u: NDArray[np.float64], cardinality: NDArray[np.float64] | float, exponent: float) -> NDArray[np.uint64]:
    """Return ranks 0..cardinality-1 for u in [0, 1), by the inverse of the law's continuous form x ** -exponent.

    The density on [1, cardinality + 1) integrates and inverts in closed form, so no table is needed.
    """
    end = np.add(cardinality, 1.0, dtype=np.float64)
    if exponent == 1.0:
        x = np.exp(u * np.log(end))
    else:
        power = 1.0 - exponent
        x = (1.0 + u * (end**power - 1.0)) ** (1.0 / power)
    return (np.clip(x, 1.0, end - 0.5) - 1.0).astype(np.uint64)


def _keys(count: int, *parts: int) -> NDArray[np.uint64]:
    """Return a column of `count` independent keys, uint64 [count, 1]."""
    return stream(salt(*parts), np.arange(count, dtype=np.uint64)).reshape(count, 1)


def _spread(keys: NDArray[np.uint64], fraction: float) -> NDArray[np.float64]:
    """Return random weights, one per key, whose squares sum to `fraction`."""
    weights = normal(keys.reshape(-1))
    weights *= fraction**0.5 / max(float(np.sqrt((weights * weights).sum())), 1e-9)
    return weights


def _id_weights(keys: NDArray[np.uint64], ranks: NDArray[np.uint64]) -> NDArray[np.float64]:
    shrunk: NDArray[np.float64] = normal(stream(keys, ranks)) / np.sqrt(1.0 + ranks / _FREQUENT)
    return shrunk


def _bias(rate: float, signal: float) -> float:
    """Return b such that sigmoid(b + signal * z) has mean `rate` for normal z (Gauss-Hermite sum, bisection)."""
    points, weights = np.polynomial.hermite_e.hermegauss(64)
    low, high = -40.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float((weights / (1.0 + np.exp(-(middle + signal * points)))).sum() / weights.sum())
        low, high = (middle, high) if mean < rate else (low, middle)
    return (low + high) / 2

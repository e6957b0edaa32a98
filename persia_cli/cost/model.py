"""The CPU time and the bytes of a step: linear functions of its size, fitted to measured steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

LOADER, WORKER, SERVER, NN = "data-loader", "embedding-worker", "embedding-server", "nn-worker"
TERMS: dict[str, tuple[str, ...]] = {
    LOADER: ("batches", "samples"),
    WORKER: ("batches", "requests", "ids", "rows", "row_bytes"),
    SERVER: ("requests", "rows", "row_bytes", "converted"),
    NN: ("batches", "samples", "id_bytes", "multiply_adds", "converted"),
}
"""The terms of each role's CPU time."""
ID_BYTES, KEY_BYTES, POSITION_BYTES, FLOAT_BYTES = 8, 10, 4, 4
FLOPS_PER_WEIGHT = 6
"""Operations of a dense weight for a sample: a multiplication and an addition, forward once and backward twice."""

RoleCosts = Mapping[str, Mapping[str, float]]
"""Seconds of CPU per unit of each term, by role."""


@dataclass(frozen=True, slots=True)
class StepSize:
    """The sizes of a step over all ranks."""

    batch: int
    ranks: int
    servers: int
    dense: int
    """Dense values and labels of a sample."""
    ids: float
    """Ids of a sample."""
    id_values: float
    """Values of the rows of a sample's ids."""
    rows: float
    """Unique rows of one rank's part."""
    row_values: float
    """Values of these rows."""
    wire_bytes: float
    """Bytes of these rows in a message."""
    converted: bool
    """True if rows travel in another type than float32."""
    weights: int
    """Weights of the dense network."""

    def terms(self, role: str) -> dict[str, float]:
        """Return the number of units of each term of a role's CPU time."""
        values = self.ranks * self.row_values
        units = {
            "batches": self.ranks,
            "requests": self.ranks * self.servers,
            "samples": self.batch,
            "ids": self.batch * self.ids,
            "rows": self.ranks * self.rows,
            "row_bytes": values * FLOAT_BYTES,
            "id_bytes": self.batch * self.id_values * FLOAT_BYTES,
            "multiply_adds": self.batch * self.weights,
            "converted": values * self.converted,
        }
        return {name: units[name] for name in TERMS[role]}

    def cpu(self, costs: RoleCosts, role: str, without: str = "") -> float:
        """Return the CPU seconds of all replicas of a role for one step, `without` one of the terms."""
        return sum(costs[role][name] * units for name, units in self.terms(role).items() if name != without)


class Traffic(NamedTuple):
    """Bytes per sample that the replicas of a role receive and send."""

    received: float
    sent: float


def traffic(step: StepSize) -> dict[str, Traffic]:
    """Return the bytes per sample of each role, without headers and without the exchange of dense gradients."""
    per_sample = step.ranks / step.batch
    ids, samples = step.ids * ID_BYTES, float(step.dense * FLOAT_BYTES)
    keys, rows = step.rows * KEY_BYTES * per_sample, step.wire_bytes * per_sample
    inverse = step.ids * POSITION_BYTES
    return {
        LOADER: Traffic(0.0, ids + samples),
        WORKER: Traffic(ids + 2 * rows, 2 * keys + 2 * rows + inverse),
        SERVER: Traffic(2 * keys + rows, rows),
        NN: Traffic(samples + rows + inverse, rows),
    }


def all_reduce_bytes(machines: int, weights: int) -> float:
    """Return the bytes that each of some machines sends, and receives, to add up float32 gradients in a ring."""
    return 2.0 * (machines - 1) / machines * weights * FLOAT_BYTES


def fit(steps: Sequence[StepSize], seconds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the costs that fit measured CPU seconds of each role best, none below 0, by relative squared error."""
    costs = {}
    for role, names in TERMS.items():
        measured = np.array([cpu_s[role] for cpu_s in seconds])
        units = np.array([[step.terms(role)[name] for name in names] for step in steps], float)
        costs[role] = dict(zip(names, _least_squares(units / measured[:, None]), strict=True))
    return costs


def _least_squares(terms: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[float]:
    """Return the factors >= 0 that bring the weighted sum of the terms of each row closest to 1.

    There are few terms, so every set of them that may be above 0 is tried, the smallest first.
    """
    rows, count = terms.shape
    scale = np.where(terms.max(axis=0) > 0, terms.max(axis=0), 1.0)
    best, least = [0.0] * count, float(rows)
    for size in range(1, min(rows, count) + 1):
        for chosen in map(list, combinations(range(count), size)):
            factors, *_ = np.linalg.lstsq(terms[:, chosen] / scale[chosen], np.ones(rows), rcond=None)
            error = float(((terms[:, chosen] / scale[chosen] @ factors - 1.0) ** 2).sum())
            if (factors >= 0).all() and error < 0.999 * least:
                best, least = [0.0] * count, error
                for number, factor in zip(chosen, factors / scale[chosen], strict=True):
                    best[number] = float(factor)
    return best

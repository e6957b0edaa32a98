"""Cases of `bench kernels` for the whole embedding step of Criteo's shape, in one process and one thread."""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from persia_cli.bench import traffic
from persia_cli.bench.alternate import alternate
from persia_cli.bench.layouts import EPS, LR
from persia_cli.bench.machine import available_bytes
from persia_cli.bench.result import Result, Scale, faster
from persia_cli.bench.step import EmbeddingStep
from persia_cli.bench.stores import SPARE
from persia_cli.store.layout import INDEX_BYTES

BATCHES = 32
"""Number of batches in a row."""


@dataclass(frozen=True)
class Match:
    """A baseline to measure against, with the same optimizer on both sides."""

    kind: Literal["sgd", "adagrad", "rowwise_adagrad"]
    baseline: str
    """`torch` or `fbgemm`."""
    target: float | None
    """Target at dim 16 with Zipf ids."""


MATCHES = (
    Match("adagrad", "torch", 5.0),
    Match("sgd", "torch", None),
    Match("adagrad", "fbgemm", 2.8),
    Match("rowwise_adagrad", "fbgemm", 1.1),
    Match("sgd", "fbgemm", None),
)
NAMES = {"sgd": "SGD", "adagrad": "Adagrad", "rowwise_adagrad": "row-wise Adagrad"}


def whole_step(scale: Scale) -> Iterator[Result]:
    """Yield the cases that have targets: dim 16, 26 tables of Criteo's cardinalities, Zipf ids.

    scripts/compare_store.py measures the rest.
    """
    from persia_cli.bench.baselines import fbgemm

    scaled = () if scale.judged else tuple(max(3, values // 1000) for values in traffic.CRITEO)
    for match in MATCHES:
        if match.target is not None and (match.baseline == "torch" or fbgemm.is_installed()):
            yield from compare(scale, scaled or traffic.CRITEO, 16, match, skewed=True)


def compare(
    scale: Scale, cardinalities: Sequence[int], dim: int, match: Match, skewed: bool, huge_pages: bool = False
) -> Iterator[Result]:
    """Time the step of one baseline and ours, with the rows of all ids present; tables too large for memory shrink."""
    from persia_cli.bench.baselines import tables
    from persia_cli.bench.baselines.fbgemm import Fbgemm
    from persia_cli.bench.baselines.one_bag import OneBag

    gc.collect()
    tables.one_thread()
    cardinalities, note = fitting(cardinalities, dim)
    rng = np.random.default_rng(8)
    batches = [traffic.batch(rng, cardinalities, scale.batch, skewed) for _ in range(BATCHES)]
    gradient = rng.standard_normal((scale.batch, len(cardinalities), dim), np.float32) * np.float32(1e-3)
    ours = EmbeddingStep(cardinalities, dim, match.kind, scale.batch, sum(cardinalities))
    ours.fill(cardinalities)
    theirs: OneBag | Fbgemm
    if match.baseline == "torch":
        assert match.kind != "rowwise_adagrad"
        theirs = OneBag(cardinalities, dim, match.kind, scale.batch, LR, EPS, huge_pages)
    else:
        theirs = Fbgemm(cardinalities, dim, match.kind, scale.batch, LR, EPS, huge_pages)
    mine, other = [ours.ready(ids) for ids in batches], [theirs.ready(ids) for ids in batches]
    outer = tables.tensor(gradient)
    timed = alternate(
        {
            "ours": lambda: [ours.step(ids, gradient) for ids in mine],
            "theirs": lambda: [theirs.step(ids, outer) for ids in other],
        },
        scale.rounds,
        scale.at_least,
    )
    units = scale.batch * len(cardinalities) * BATCHES / 1e6
    name = f"{'torch, one bag,' if match.baseline == 'torch' else 'FBGEMM'} {NAMES[match.kind]}"
    name += " on huge pages" if huge_pages else ""
    count = "1 table" if len(cardinalities) == 1 else f"{len(cardinalities)} tables"
    label = f"embedding step, {count}, {sum(cardinalities) / 1e6:.3g}M rows, dim {dim}, "
    label += f"{'Zipf' if skewed else 'uniform'}, {NAMES[match.kind]}"
    target = match.target if dim == 16 and skewed and len(cardinalities) == 26 and not huge_pages else None
    yield faster(label, name, timed["ours"], timed["theirs"], units, "Mids/s", target, note)


def fitting(cardinalities: Sequence[int], dim: int) -> tuple[Sequence[int], str]:
    """Return the cardinalities, scaled down if both sides do not fit into memory, and then a note."""
    each = 2 * 2 * dim * 4 + 2 * INDEX_BYTES
    share = available_bytes() * (SPARE + 0.25) / each / sum(cardinalities)
    if share >= 1:
        return cardinalities, ""
    smaller = tuple(max(3, int(values * share)) for values in cardinalities)
    return smaller, f"cardinalities scaled by {share:.2g} to fit the memory"

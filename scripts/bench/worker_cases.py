"""Cases of `scripts.bench kernels` for the workers: deduplicate, pool, sum gradients, convert for the wire."""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.result import OURS, Result
from persia_cli.kernels.batch import dedup as numbering
from persia_cli.kernels.batch.pool import MODES, pool_backward, pool_forward
from persia_cli.kernels.rows import cast as casting
from persia_cli.store.batch_rows import RowPlanner, unique_keys
from persia_cli.store.wire_rows import row_bytes
from scripts.bench import stores
from scripts.bench.alternate import Scale, Timing, alternate, compared

SHAPES = ((1, 26), (10, 3))
"""Ids per sample and feature, and the number of features: all of Criteo's, or the first of them."""
CAST_BYTES = (1_800_000, 64_000_000)
"""Bytes of float32 arrays: one fits the cache, one does not."""


def dedup(scale: Scale) -> Iterator[Result]:
    """Measure the distinct keys of a batch of Criteo's shape, and each id's number among them."""
    rng = np.random.default_rng(5)
    ids = stores.batch(rng, stores.CRITEO, scale.batch, skewed=True)
    layout = stores.layout_of(16, "adagrad", 1_000_000, len(stores.CRITEO))
    tables = np.repeat(np.arange(26, dtype=np.uint16), scale.batch)
    keys = np.concatenate([stores.keys_of(row, table) for table, row in enumerate(ids)])
    raw, offsets = ids.reshape(-1).astype(np.uint64), np.arange(ids.size + 1, dtype=np.uint32)
    # numpy gets ids with their feature in the upper bits: it sorts these faster than keys, which are hashes.
    plain = (ids.astype(np.uint64) | np.arange(26, dtype=np.uint64).reshape(-1, 1) << np.uint64(56)).reshape(-1)
    planner, unique, epoch = RowPlanner(layout, 1), unique_keys(keys.size), [0]
    inverse = np.empty(keys.size, np.int32)

    def number() -> object:
        epoch[0] += 1
        return numbering.number_keys(keys, tables, epoch[0], unique, inverse)

    timed = alternate(
        {
            "plan": lambda: planner.plan(raw, offsets, scale.batch),
            "number": number,
            "np.unique": lambda: np.unique(plain, return_inverse=True),
        },
        scale.rounds,
        scale.at_least,
    )
    labels = {"number": "dedup of keys", "plan": "dedup from raw ids: hash, number, order by server"}
    for way, label in labels.items():
        yield compared(label, {OURS: timed[way], "np.unique": timed["np.unique"]}, keys.size / 1e6, "Mids/s")


def pool(scale: Scale) -> Iterator[Result]:
    """Measure sums of the rows of each sample and feature, forward and backward, against torch."""
    for dim in scale.dims:
        for length, features in SHAPES:
            yield from _pool(scale, dim, length, features)


def _pool(scale: Scale, dim: int, length: int, features: int) -> Iterator[Result]:
    from persia_cli.bench.baselines import parts

    parts.one_thread()
    rng, bags = np.random.default_rng(6), scale.batch * features
    drawn = stores.batch(rng, stores.CRITEO[:features], scale.batch * length, skewed=True)
    drawn += np.arange(features).reshape(-1, 1) << 32
    unique, inverse = np.unique(drawn, return_inverse=True)
    inverse = inverse.reshape(features, scale.batch, length)
    ours = np.ascontiguousarray(inverse.reshape(-1).astype(np.int32))
    offsets = None if length == 1 else np.arange(0, ours.size + 1, length, dtype=np.uint32)
    # torch gets the same bags in the order in which its result equals ours: sample by sample.
    theirs = np.ascontiguousarray(inverse.transpose(1, 0, 2)).reshape(-1).astype(np.int64)
    starts = np.arange(0, theirs.size + 1, length, dtype=np.int64)
    rows = rng.standard_normal((unique.size, dim), np.float32)
    gradient = rng.standard_normal((scale.batch, features, dim), np.float32)
    out, sums = np.empty_like(gradient), np.empty_like(rows)
    modes, rounds = np.full(features, MODES["sum"], np.uint8), np.ones(features, np.int64)

    def backward() -> None:
        sums.fill(0.0)
        pool_backward(gradient, ours, offsets, modes, rounds, sums)

    flat = gradient.reshape(bags, dim)
    timed = alternate(
        {
            "forward": lambda: pool_forward(rows, ours, offsets, modes, rounds, out),
            "wide": parts.pool_forward(rows, theirs, starts, narrow=False),
            "narrow": parts.pool_forward(rows, theirs, starts, narrow=True),
            "backward": backward,
            "bag": parts.pool_backward(rows, theirs, starts, flat),
            "add": parts.index_add(unique.size, theirs, starts, flat),
        },
        scale.rounds,
        scale.at_least,
    )
    label, units, unit = f"dim {dim}, {length} ids a bag", ours.size / 1e6, "Mids/s"
    best = min(timed["wide"], timed["narrow"], key=lambda timing: timing.median)
    yield compared(f"pooling, {label}", {OURS: timed["forward"], "embedding_bag": best}, units, unit)
    others = {"embedding_bag": timed["bag"], "index_add_": timed["add"]}
    yield compared(f"pooling backward, {label}", {OURS: timed["backward"]} | others, units, unit)


def cast(scale: Scale) -> Iterator[Result]:
    """Measure conversion of rows for the wire and back against torch's copies; float16 also scales each row."""
    for dim in scale.dims:
        for size in CAST_BYTES[:1] if scale.quick else CAST_BYTES:
            for half in ("bfloat16", "float16"):
                yield _cast(scale, dim, size, half)


def _cast(scale: Scale, dim: int, size: int, half: Literal["float16", "bfloat16"]) -> Result:
    from persia_cli.bench.baselines import parts

    parts.one_thread()
    values: NDArray[np.float32] = np.random.default_rng(7).standard_normal((size // 4 // dim, dim), np.float32)
    flat, back = values.reshape(-1), np.empty(values.size, np.float32)
    block = np.empty(len(values) * row_bytes(dim, half), np.uint8)
    ways: dict[str, Callable[[], object]] = {
        "encode": lambda: casting.to_bfloat16(flat, block),
        "decode": lambda: casting.from_bfloat16(block, back),
    }
    if half == "float16":
        ways["encode"] = lambda: casting.to_float16(flat, dim, block)
        ways["decode"] = lambda: casting.from_float16(block, dim, back)
    encode, decode = parts.there_and_back(values, half)
    timed = alternate(
        {
            **ways,
            "torch encode": encode,
            "torch decode": decode,
        },
        scale.rounds,
        scale.at_least,
    )
    ours, theirs = _sum(timed["encode"], timed["decode"]), _sum(timed["torch encode"], timed["torch decode"])
    note = " ".join(f"{way} {timed[f'torch {way}'].median / timed[way].median:.2f}" for way in ("encode", "decode"))
    label = f"{half} encode + decode, dim {dim}, {size / 1e6:g} MB"
    return compared(label, {OURS: ours, "torch copy_": theirs}, 2 * values.nbytes / 1e9, "GB/s", note)


def _sum(one: Timing, other: Timing) -> Timing:
    return Timing(one.median + other.median, one.least + other.least, one.most + other.most, one.loops)

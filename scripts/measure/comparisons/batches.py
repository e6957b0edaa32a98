"""The work of embedding workers on a batch, one thread: distinct keys against numpy, pooling and casts against torch.

Batches have Criteo's shape: 26 features, Zipf ids.
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.result import OURS, Result
from persia_cli.kernels.batch.pool import MODES, pool_backward, pool_forward
from persia_cli.kernels.rows import cast
from persia_cli.kernels.toolchain.memory import retain_freed_memory
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.wire_rows import row_bytes
from scripts.measure import CRITEO, Given, Note, stores
from scripts.measure.timing import alternate, compared

Half = Literal["bfloat16", "float16"]
SHAPES = ((1, 26), (10, 3))
"""Ids per sample and feature, and the number of features: all of Criteo's, or the first of them."""
CAST_BYTES = 1_800_000
"""Bytes of the float32 rows of a message, which a cache holds."""


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64, 128])


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure all parts, each dim by itself where it matters."""
    import torch

    torch.set_num_threads(1)
    retain_freed_memory()
    samples = 256 if given.quick else stores.BATCH
    dims = given.dims[:1] if given.quick else given.dims
    note("distinct keys")
    yield _distinct(given.rounds, samples)
    for dim, (length, features) in product(dims, SHAPES):
        note(f"pooling, dim {dim}, {length} ids a bag")
        yield from _pool(given.rounds, samples, dim, length, features)
    for dim, half in product(dims, get_args(Half)):
        note(f"{half}, dim {dim}")
        yield _cast(given.rounds, dim, half)


def _distinct(rounds: int, samples: int) -> Result:
    """Measure the distinct keys of a batch from raw ids, each id's number among them, and their order by server."""
    ids = stores.batch(np.random.default_rng(5), CRITEO, samples, skewed=True)
    raw, offsets = ids.reshape(-1).astype(np.uint64), np.arange(ids.size + 1, dtype=np.uint32)
    planner = RowPlanner(stores.layout_of(16, "adagrad", 1_000_000, len(CRITEO)), 1)
    # numpy gets ids with their feature in the upper bits: it sorts these faster than keys, which are hashes.
    plain = (ids.astype(np.uint64) | np.arange(26, dtype=np.uint64).reshape(-1, 1) << np.uint64(56)).reshape(-1)
    sides = {
        OURS: lambda: planner.plan(raw, offsets, samples),
        "np.unique": lambda: np.unique(plain, return_inverse=True),
    }
    return compared("dedup from raw ids", alternate(sides, rounds), raw.size / 1e6, "Mids/s")


def _pool(rounds: int, samples: int, dim: int, length: int, features: int) -> Iterator[Result]:
    """Measure sums of the rows of each sample and feature, forward and backward."""
    import torch
    from torch.nn.functional import embedding_bag

    rng = np.random.default_rng(6)
    drawn = stores.batch(rng, CRITEO[:features], samples * length, skewed=True)
    drawn += np.arange(features).reshape(-1, 1) << 32
    unique, inverse = np.unique(drawn, return_inverse=True)
    inverse = inverse.reshape(features, samples, length)
    ours = np.ascontiguousarray(inverse.reshape(-1).astype(np.int32))
    offsets = None if length == 1 else np.arange(0, ours.size + 1, length, dtype=np.uint32)
    rows = rng.standard_normal((unique.size, dim), np.float32)
    gradient = rng.standard_normal((samples, features, dim), np.float32)
    out, sums = np.empty_like(gradient), np.empty_like(rows)
    modes, divisors = np.full(features, MODES["sum"], np.uint8), np.ones(features, np.int64)

    def backward() -> None:
        sums.fill(0.0)
        pool_backward(gradient, ours, offsets, modes, divisors, sums)

    # torch gets the same bags in the order in which its result equals ours: sample by sample.
    theirs = torch.from_numpy(np.ascontiguousarray(inverse.transpose(1, 0, 2)).reshape(-1).astype(np.int64))
    starts = torch.arange(0, len(theirs) + 1, length)
    narrow = theirs.int()  # its faster indices
    weights, outer = torch.from_numpy(rows), torch.from_numpy(gradient.reshape(-1, dim))
    pooled = embedding_bag(
        theirs, leaf := weights.clone().requires_grad_(), starts, mode="sum", include_last_offset=True
    )
    gradients, total = outer.repeat_interleave(length, 0), torch.zeros(len(rows), dim)
    timed = alternate(
        {
            "forward": lambda: pool_forward(rows, ours, offsets, modes, divisors, out),
            "bag": lambda: embedding_bag(narrow, weights, starts.int(), mode="sum", include_last_offset=True),
            "backward": backward,
            "bag backward": lambda: torch.autograd.grad(pooled, leaf, outer, retain_graph=True),
            "add": lambda: total.zero_().index_add_(0, theirs, gradients),
        },
        rounds,
    )
    label, units = f"dim {dim}, {length} ids a bag", ours.size / 1e6
    yield compared(f"pooling, {label}", {OURS: timed["forward"], "embedding_bag": timed["bag"]}, units, "Mids/s")
    others = {"embedding_bag": timed["bag backward"], "index_add_": timed["add"]}
    yield compared(f"pooling backward, {label}", {OURS: timed["backward"]} | others, units, "Mids/s")


def _cast(rounds: int, dim: int, half: Half) -> Result:
    """Measure conversion of rows for the wire and back; float16 also scales each row, which torch's copy does not."""
    import torch

    values: NDArray[np.float32] = np.random.default_rng(7).standard_normal((CAST_BYTES // 4 // dim, dim), np.float32)
    flat, back = values.reshape(-1), np.empty(values.size, np.float32)
    block = np.empty(len(values) * row_bytes(dim, half), np.uint8)
    wide, narrow = torch.from_numpy(values), torch.empty(values.shape, dtype=getattr(torch, half))
    wide_back = torch.empty(values.shape)

    def there_and_back() -> None:
        if half == "bfloat16":
            cast.to_bfloat16(flat, block)
            cast.from_bfloat16(block, back)
        else:
            cast.to_float16(flat, dim, block)
            cast.from_float16(block, dim, back)

    sides = {OURS: there_and_back, "torch copy_": lambda: (narrow.copy_(wide), wide_back.copy_(narrow))}
    name = f"{half} encode + decode, dim {dim}"
    return compared(name, alternate(sides, rounds), 2 * values.nbytes / 1e9, "GB/s")

"""Cases of `bench kernels` for the index: keys to row numbers."""

from collections.abc import Iterator

import numpy as np

from persia_cli.bench import limits, stores
from persia_cli.bench.alternate import alternate
from persia_cli.bench.result import Result, Scale, faster
from persia_cli.bench.traffic import zipf
from persia_cli.kernels.memory import zeros

LINEAR, DICTIONARY = 2.2, 30.0
KEYS = 100_000


def index(scale: Scale) -> Iterator[Result]:
    """Measure keys to row numbers at load 0.65, against plain linear probing and a Python dict."""
    rows = scale.rows[0]
    (shard,) = stores.filled(1, "sgd", rows)
    slots = zeros(2 * int(rows / stores.LOAD), np.uint64)
    slots.fill(limits.EMPTY)
    everything = stores.request(np.arange(rows))
    limits.fill_linear(slots, everything.keys, everything.ids)
    rng = np.random.default_rng(4)
    size = min(KEYS, rows)
    uniform = [stores.request(rng.integers(0, rows, size)) for _ in range(16)]
    found = np.empty(size, np.int64)
    timed = alternate(
        {
            "ours": lambda: [shard.stores[0].find(each.keys, each.tables) for each in uniform],
            "linear": lambda: [limits.find_linear(slots, each.keys, found) for each in uniform],
        },
        scale.rounds,
        scale.at_least,
    )
    units = size * len(uniform) / 1e6
    yield faster(
        f"hash look-up, load {stores.LOAD}, uniform", "naive linear probing", timed["ours"], timed["linear"],
        units, "Mkeys/s", LINEAR,
    )  # fmt: skip
    skewed = [stores.request(zipf(rng, rows, size)) for _ in range(len(uniform))]
    wanted = [each.keys.tolist() for each in skewed]
    known = dict(zip(everything.keys[: scale.rows[1]].tolist(), range(scale.rows[1]), strict=True))
    known.update((key, 0) for keys in wanted for key in keys)
    timed = alternate(
        {
            "ours": lambda: [shard.stores[0].find(each.keys, each.tables) for each in skewed],
            "linear": lambda: [limits.find_linear(slots, each.keys, found) for each in skewed],
            "dict": lambda: [[known[key] for key in keys] for keys in wanted],
        },
        scale.rounds,
        scale.at_least,
    )
    label = f"hash look-up, load {stores.LOAD}, Zipf"
    yield faster(label, "naive linear probing", timed["ours"], timed["linear"], units, "Mkeys/s")
    note = f"the dict holds {len(known):,} keys, the index {rows:,}"
    yield faster(label, "Python dict", timed["ours"], timed["dict"], units, "Mkeys/s", DICTIONARY, note)

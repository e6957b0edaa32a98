"""Cases of `scripts.bench kernels` for a full store, and for a store on two cores."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter, thread_time_ns

import numpy as np

from persia_cli.bench.result import OURS, Result
from persia_cli.store.shard import Shard
from scripts.bench import stores
from scripts.bench.alternate import Scale, Turn, alternate, compared, single
from scripts.bench.stores import Block, RowRequest, distinct, layout_of

FULL = 0.97
"""Fraction of the capacity in use that counts as full: some partitions are full earlier than others."""
REQUESTS = 12
ROOM = 5
"""Size of the store that never gets full, as a multiple of the other."""


def two_shards(scale: Scale) -> Iterator[Result]:
    """Measure two shards on two threads, each with its part of every request, against one shard with all of it."""
    for dim in scale.dims:
        yield _two_shards(scale, dim)


def _two_shards(scale: Scale, dim: int) -> Result:
    rows, note = stores.rows_that_fit(min(4_000_000, scale.rows[0]), dim, "adagrad", beside=dim * 8 + 40)
    (whole,), halves = stores.filled(dim, "adagrad", rows), stores.filled(dim, "adagrad", rows, servers=2)
    asked = stores.requests(rows, min(scale.batch * 26, rows), False, REQUESTS)
    partitions = whole.layout.groups[0].partitions
    parts = list(zip(*(stores.divided(each, 2, partitions) for each in asked), strict=True))
    sent = stores.gradients(max(each.ids.size for each in asked), dim)
    with ThreadPoolExecutor(2) as threads:

        def both() -> None:
            done = [threads.submit(train, shard, part, sent) for shard, part in zip(halves, parts, strict=True)]
            for each in done:
                each.result()

        timed = alternate(
            {OURS: both, "one shard": lambda: train(whole, asked, sent)}, scale.rounds, scale.at_least, perf_counter
        )
    label = f"two shards on two cores, look-up + update, dim {dim}"
    units = sum(each.ids.size for each in asked) / 1e6
    return compared(label, timed, units, "Mrows/s", note)


def train(shard: Shard, asked: Sequence[RowRequest], sent: Block, step: int = 1) -> None:
    """Look up and update each request, as a batch of training does."""
    for each in asked:
        shard.look_up(0, each.keys, each.tables, step, True, batch=step)
        shard.update(0, each.keys, each.tables, sent[: each.ids.size], step, batch=step)


class Traffic:
    """Endless skewed requests for a store, each with the next step's number."""

    def __init__(self, capacity: int, dim: int, ids: int, draws: int) -> None:
        self.shard = Shard(layout_of(dim, "adagrad", capacity), 0, 1)
        self.asked: list[RowRequest] = []
        self._rng = np.random.default_rng(9)
        self._ids, self._draws, self._fresh = ids, draws, ids
        self._sent = stores.gradients(draws, dim)
        self._step = self.keys_asked = 0

    def more(self) -> None:
        """Make requests; this is not timed."""
        self.asked = [stores.request(distinct(self._rng, self._ids, self._draws, True)) for _ in range(REQUESTS)]

    def as_many_new(self, other: "Traffic") -> None:
        """Make requests with as many unknown keys as those of another store: ids that were never requested."""
        self.more()
        for number, (own, its) in enumerate(zip(self.asked, other.asked, strict=True)):
            wanted = int(np.count_nonzero(stores.find_rows(other.shard, its) < 0))
            known = own.ids[stores.find_rows(self.shard, own) >= 0]
            fresh = np.arange(self._fresh, self._fresh + wanted)
            self._fresh += wanted
            ids = np.concatenate([known[: its.ids.size - wanted], fresh])
            self.asked[number] = stores.request(self._rng.permutation(ids))

    def train(self) -> list[int]:
        """Look up and update the requests; return nanoseconds of processor time of each look-up."""
        spent = []
        for each in self.asked:
            self._step += 1
            self.keys_asked += each.ids.size
            start = thread_time_ns()
            self.shard.look_up(0, each.keys, each.tables, self._step, True, batch=self._step)
            spent.append(thread_time_ns() - start)
            sent = self._sent[: each.ids.size]
            self.shard.update(0, each.keys, each.tables, sent, self._step, batch=self._step)
        return spent

    def rows(self) -> int:
        """Rows that the store holds now."""
        return sum(counters.rows for counters in self.shard.counters().values())


def at_capacity(scale: Scale) -> Iterator[Result]:
    """Measure a full store under skewed requests against one with free space, and its longest look-up."""
    for dim in scale.dims:
        yield from _at_capacity(scale, dim)


def _at_capacity(scale: Scale, dim: int) -> Iterator[Result]:
    capacity, draws = scale.rows[1], scale.batch * 26 // 2
    full, roomy = (Traffic(room, dim, capacity * 20, draws) for room in (capacity, capacity * ROOM))
    # Below capacity a store also pays for fresh pages, which would hide the cost of eviction: touch them first.
    roomy.shard.stores[0].rows.arena.fill(0.0)
    while full.rows() < FULL * capacity:
        for each in (full, roomy):
            each.more()
            each.train()

    def ask_both() -> None:
        full.more()
        roomy.as_many_new(full)

    begun = [(_misses(each), each.keys_asked) for each in (full, roomy)]
    timed = alternate(
        {
            OURS: Turn(full.train, prepare=full.more, loops=1),
            "below capacity": Turn(roomy.train, prepare=ask_both, loops=1),
        },
        scale.rounds,
        scale.at_least,
    )
    fractions = [
        f"{(_misses(each) - misses) / (each.keys_asked - asked):.0%}"
        for each, (misses, asked) in zip((full, roomy), begun, strict=True)
    ]
    note = f"of the keys {fractions[0]} are new here, {fractions[1]} there"
    label = f"store at capacity, Zipf, dim {dim}"
    yield compared(f"{label}, speed", timed, REQUESTS, "requests/s", note)
    spent = []
    for _ in range(1 if scale.quick else 10):
        full.more()
        spent += [each / 1e6 for each in full.train()]
    evicted = sum(counters.evicted for counters in full.shard.counters().values())
    note = f"{evicted:,} rows evicted"
    yield single(f"{label}, longest look-up", "ms", {OURS: max(spent), "median": median(spent)}, note)


def _misses(traffic: Traffic) -> int:
    return sum(counters.misses for counters in traffic.shard.counters().values())

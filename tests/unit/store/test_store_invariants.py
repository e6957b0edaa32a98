"""Invariants after any sequence of look-ups, updates and insertions, on a shard and its plain twin."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from persia_cli.store.layout import partition_owners
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows, encode_rows
from tests import naive_store
from tests.support.shards import OPTIMIZERS, SGD, TABLES, arrays, colliding, compare, find_rows, layout_of, rows_in

EDGES = [0, 2**64 - 1, 2**32, 2**63]
WIRES = ["float32", "bfloat16", "float16"]
DTYPES = st.sampled_from([*WIRES, "int8"])
LAYOUTS = st.builds(
    layout_of,
    dim=st.sampled_from([1, 3, 17]),
    capacity=st.integers(1, 12) | st.integers(1, 40),
    partitions=st.integers(1, 2) | st.integers(1, 8),
    optimizer=st.sampled_from(OPTIMIZERS),
    tables=st.integers(1, 3).map(lambda count: TABLES[:count]),
    admission=st.sampled_from([1.0, 1.0, 0.5]),
    dtype=DTYPES,
    wire=st.sampled_from(WIRES),
    when_full=st.sampled_from(["evict_lru", "evict_lfu", "refuse"]),
    min_count=st.sampled_from([1, 1, 2, 3]),
    epoch_bits=st.integers(0, 4),
    expire_after=st.sampled_from([None, None, 1, 3]),
)
PLACES = st.lists(st.tuples(st.integers(0, 49), st.integers(0, 2)), max_size=12)


def names_of(layout):
    """Fifty keys: at the edges, of the same buckets, by chance."""
    chance = np.random.default_rng(3).integers(2**64, size=28, dtype=np.uint64).tolist()
    return EDGES + colliding(layout, 18) + chance


def drawn(layout, places):
    """The names at places, each once."""
    keys, tables = names_of(layout), layout.groups[0].tables
    return list(dict.fromkeys((keys[place], tables[table % len(tables)].number) for place, table in places))


class Life(RuleBasedStateMachine):
    """One shard, its twin, and batches whose update is yet to come."""

    @initialize(layout=LAYOUTS)
    def begin(self, layout):
        self.layout, self.group = layout, layout.groups[0]
        self.shard, self.twin = Shard(layout, 0, 1), naive_store.Store(layout)
        self.keys = names_of(layout)
        self.step, self.batches, self.waiting = 0, 0, {}

    def names(self, places):
        tables = self.group.tables
        return list(dict.fromkeys((self.keys[place], tables[table % len(tables)].number) for place, table in places))

    def compare_look_up(self, names, step, create, batch=None):
        block = self.shard.look_up(0, *arrays(names), step, create, batch)
        values = self.twin.look_up(names, step, create)
        assert block.tobytes() == encode_rows(values, self.group.wire).tobytes()

    @rule(places=PLACES, ahead=st.sampled_from([1, 1, 2, 0, -1]))
    def train(self, places, ahead):
        self.step = max(0, self.step + ahead)
        self.batches += 1
        names = self.names(places)
        self.compare_look_up(names, self.step, True, self.batches)
        self.waiting[self.batches] = (names, self.step)

    @rule(places=PLACES)
    def read(self, places):
        before = self.image()
        self.compare_look_up(self.names(places), 2**32 - 1, False)
        assert self.image() == before

    @precondition(lambda self: self.waiting)
    @rule(places=PLACES, seed=st.integers(0, 2**32))
    def update_after_others_took_rows(self, places, seed):
        """The oldest batch's update, after a look-up of a later step."""
        batch = min(self.waiting)
        self.train(places, 1)
        names, step = self.waiting.pop(batch)
        self.change(names, step, seed, batch)

    @rule(place=st.integers(0, 42), count=st.sampled_from([3, 254, 255, 256, 300]))
    def train_on_many_small_batches(self, place, count):
        for at in range(count):
            self.step += at % 16 == 0
            name = (self.keys[place + at % 8], self.group.tables[0].number)
            self.compare_look_up([name], self.step, True)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), seed=st.integers(0, 2**32))
    def update(self, data, seed):
        batch = data.draw(st.sampled_from(sorted(self.waiting)))
        names, step = self.waiting.pop(batch)
        self.change(names, step, seed, batch)

    @rule(places=PLACES, seed=st.integers(0, 2**32), ahead=st.integers(-2, 2))
    def update_of_what_no_look_up_remembered(self, places, seed, ahead):
        self.change(self.names(places), max(0, self.step + ahead), seed, None)

    def change(self, names, step, seed, batch):
        rng = np.random.default_rng(seed)
        gradients = rng.standard_normal((len(names), self.group.dim)).astype(np.float32)
        bad = rng.random(len(names)) < 0.1
        gradients[bad, rng.integers(self.group.dim)] = rng.choice([np.nan, np.inf, -np.inf])
        block = encode_rows(gradients, self.group.wire)
        store = self.shard.stores[0]
        words = store.rows.arena.reshape(-1, self.group.width).view(np.uint32)
        own = find_rows(store, *arrays(names))
        others = np.setdiff1d(np.arange(len(words)), own)
        before = words[others].tobytes()
        self.shard.update(0, *arrays(names), block, step, batch)
        assert words[others].tobytes() == before
        self.twin.update(names, decode_rows(block, self.group.dim, self.group.wire), step)

    @rule(places=PLACES, seed=st.integers(0, 2**32))
    def insert(self, places, seed):
        names, rng = self.names(places), np.random.default_rng(seed)
        columns = self.group.vectors
        parts = {name: rng.random((len(names), width)).astype(np.float32) for name, width in columns.items()}
        last_used = rng.integers(0, self.step + 2, len(names))
        inserted = self.shard.insert(0, *arrays(names), last_used, parts)
        assert inserted == self.twin.insert(names, last_used.tolist(), parts)

    def image(self):
        store = self.shard.stores[0]
        memory = (store.index.buckets, store.index.tables, store.index.reused, store.index.fill, store.rows.arena)
        return [array.tobytes() for array in memory], store.used, self.shard.counters()

    @invariant()
    def equals_its_twin(self):
        compare(self.shard, self.twin)

    @invariant()
    def keeps_to_its_rules(self):
        for buckets in self.twin.buckets.values():
            for bucket in buckets:
                for row in bucket:
                    first, second = self.twin.candidates(row.name[0])
                    assert bucket is first or (bucket is second and (self.twin.few or len(first) == 4))
            assert sum(map(len, buckets)) <= self.group.rows_per_partition
        store, alive = self.shard.stores[0], {row.name for row in self.twin.rows()}
        names = [(key, table.number) for key in self.keys for table in self.group.tables]
        found = find_rows(store, *arrays(names))
        assert [row >= 0 for row in found.tolist()] == [name in alive for name in names]
        assert np.unique(found[found >= 0]).size == len(alive) == store.used


Life.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestLife = Life.TestCase
BATCHES = st.lists(st.tuples(PLACES, st.integers(0, 2), st.booleans()), max_size=12)


def rows_after(layout, batches, servers):
    """{(key, table): (last_used, embedding)} that servers together have after batches."""
    owners = partition_owners(layout.groups[0].partitions, servers)
    shards = [Shard(layout, server, servers) for server in range(servers)]
    step = 0
    for number, (places, ahead, updates) in enumerate(batches):
        step += ahead
        names = drawn(layout, places)
        for server, shard in enumerate(shards):
            own = [name for name in names if owners[(name[0] >> 32) * layout.groups[0].partitions >> 32] == server]
            shard.look_up(0, *arrays(own), step, True, number)
            gradients = np.array([[name[0] % 7 - 3.0] * layout.groups[0].dim for name in own], np.float32)
            if updates and own:
                shard.update(0, *arrays(own), gradients, step, number)
    return {name: kept for shard in shards for name, kept in contents(shard).items()}


def contents(shard):
    store = shard.stores[0]
    window = rows_in(store)
    names = zip(window.keys.tolist(), window.tables.tolist(), strict=True)
    values = store.read_rows(window.rows)["embedding"].tolist()
    return dict(zip(names, zip(window.last_used.tolist(), values, strict=True), strict=True))


@settings(max_examples=20)
@given(BATCHES, st.integers(1, 40), st.integers(1, 8), st.sampled_from(["evict_lru", "refuse"]), DTYPES)
def test_remaining_rows_do_not_depend_on_the_number_of_servers(batches, capacity, partitions, when_full, dtype):
    layout = layout_of(2, capacity, partitions, SGD, admission=0.8, dtype=dtype, when_full=when_full)
    one = rows_after(layout, batches, 1)
    for servers in (2, 3, 5):
        assert rows_after(layout, batches, servers) == one

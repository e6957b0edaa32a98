"""Look-ups that found a row, counted by occurrence, against counting one by one."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.roles.embedding_worker import KnownIds
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.layout import EmbeddingLayout, FeatureSpec, GroupSpec, RowOptimizer, TableSpec, table_salt
from persia_cli.store.shard import Shard
from persia_cli.store.table_counters import known_of, reads_of

SGD = RowOptimizer("sgd", 0.1)
TABLES = [TableSpec(name, number, table_salt(name), 0.1) for number, name in enumerate("abc")]
LAYOUT = EmbeddingLayout(
    (GroupSpec(0, 2, SGD, tuple(TABLES[:2]), 1000, 4), GroupSpec(1, 3, SGD, (TABLES[2],), 1000, 4)),
    (FeatureSpec("x", 0, 1, "sum"), FeatureSpec("y", 1, 2, "sum"), FeatureSpec("z", 0, 0, "sum"),
     FeatureSpec("more", 0, 1, "mean")),
    0,
)  # fmt: skip
BAGS = st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=4, max_size=4) | st.lists(
    st.lists(st.integers(0, 6), min_size=1, max_size=1), min_size=4, max_size=4
)


@settings(max_examples=30)
@given(st.lists(st.tuples(BAGS, BAGS, st.booleans()), max_size=4), st.integers(1, 3))
def test_every_occurrence_of_an_id_counts(batches, servers):
    """Batches of two samples, each with a bag of ids for each of four features."""
    planner, known = RowPlanner(LAYOUT, servers), KnownIds(LAYOUT)
    shards = [Shard(LAYOUT, server, servers) for server in range(servers)]
    there, expected = set(), {name: Counter() for name in "abc"}
    for step, (first, second, train) in enumerate(batches):
        bags = [bag for feature in zip(first, second, strict=True) for bag in feature]
        ids = np.array([id_ for bag in bags for id_ in bag], np.uint64)
        offsets = np.cumsum([0, *map(len, bags)]).astype(np.uint32)
        groups = planner.plan(ids, offsets, 2)
        unknown = []
        for server, shard in enumerate(shards):
            owned = [slice(*rows.bounds[server : server + 2]) for rows in groups]
            parts = [(rows.keys[own], rows.tables[own]) for rows, own in zip(groups, owned, strict=True)]
            answers = (
                shard.look_up_batch(parts, step, 0, None)
                if train
                else [shard.read(number, *part) for number, part in enumerate(parts)]
            )
            unknown.append([new.positions for _, new in answers])
        known.add(groups, unknown, train)
        named = [("abc"[LAYOUT.features[at // 2].table], id_) for at, bag in enumerate(bags) for id_ in bag]
        for at, bag in enumerate(bags):
            table, feature = "abc"[LAYOUT.features[at // 2].table], LAYOUT.features[at // 2].name
            if not train:
                expected[table][reads_of(feature)] += len(bag)
                expected[table][known_of(feature)] += sum((table, id_) in there for id_ in bag)
        for table, id_ in named:
            expected[table]["look_ups" if train else "reads"] += 1
            expected[table]["look_ups_known" if train else "reads_known"] += (table, id_) in there
        there |= set(named) if train else set()
    found = known.by_table()
    for name, counts in expected.items():
        assert {key: count for key, count in found[name].items() if count} == dict(+counts)

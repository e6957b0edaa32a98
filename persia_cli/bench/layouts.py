"""Embedding layouts for measurements: one table, or Criteo's."""

from collections.abc import Sequence
from typing import Literal

from persia_cli.bench.traffic import SALT
from persia_cli.store.layout import (
    EmbeddingLayout,
    FeatureSpec,
    GroupSpec,
    RowOptimizer,
    TableSpec,
    partitions_for,
    table_salt,
)

Kind = Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"]

PARTITIONS = 4096
LR, EPS = 0.01, 1e-8


def one_table(dim: int, kind: Kind, capacity: int, evict: bool = True) -> EmbeddingLayout:
    """Return the layout of a single table of float32 rows."""
    table = TableSpec("bench", number=0, salt=SALT, init_bound=0.01)
    group = GroupSpec(
        number=0,
        dim=dim,
        optimizer=RowOptimizer(kind, lr=LR, eps=EPS),
        tables=(table,),
        capacity=capacity,
        partitions=partitions_for(capacity, PARTITIONS),
    )
    feature = FeatureSpec("bench", group=0, table=0, pooling="sum")
    return EmbeddingLayout((group,), (feature,), seed=0, when_full="evict" if evict else "refuse")


def criteo_layout(dim: int, kind: Kind, cardinalities: Sequence[int], capacity: int) -> EmbeddingLayout:
    """Return the layout of one table per feature, all in one feature group."""
    tables = tuple(
        TableSpec(f"feature-{number}", number, table_salt(f"feature-{number}"), init_bound=0.01)
        for number in range(len(cardinalities))
    )
    optimizer = RowOptimizer(kind, lr=LR, eps=EPS)
    group = GroupSpec(0, dim, optimizer, tables, capacity, partitions_for(capacity, PARTITIONS))
    features = tuple(FeatureSpec(table.name, 0, table.number, "sum") for table in tables)
    return EmbeddingLayout((group,), features, seed=0)

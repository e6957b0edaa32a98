"""Placement of keys and sizes of rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.store.layout import (
    EmbeddingLayout,
    GroupSpec,
    RowOptimizer,
    bytes_per_row,
    first_hash,
    partition_owners,
    partitions_of,
    row_width,
    table_salt,
)
from tests import naive


@given(st.integers(1, 300).flatmap(lambda p: st.tuples(st.just(p), st.integers(1, min(p, 20)))))
def test_servers_share_the_partitions_without_gap_or_overlap(sizes):
    partitions, servers = sizes
    owned = [partitions_of(partitions, server, servers) for server in range(servers)]
    assert [partition for own in owned for partition in own] == list(range(partitions))
    assert min(map(len, owned)) >= 1
    owners = partition_owners(partitions, servers)
    for partition in range(partitions):
        first, last = first_hash(partitions, partition), first_hash(partitions, partition + 1) - 1
        assert naive.server_of(first << 32, partitions, servers) == owners[partition]
        assert naive.server_of(last << 32, partitions, servers) == owners[partition]
    assert first_hash(partitions, partitions) == 2**32


@pytest.mark.parametrize(
    ("dim", "kind", "width"), [(1, "sgd", 4), (3, "adagrad", 8), (16, "sgd", 16), (16, "adam", 48), (17, "adam", 52)]
)
def test_rows_are_padded_to_16_bytes_and_cost_at_most_32_more(dim, kind, width):
    assert row_width(dim, kind) == width
    assert width * 4 < bytes_per_row(dim, kind) <= width * 4 + 32


def test_salts_differ_and_never_change():
    assert table_salt("C1") != table_salt("C2")
    assert table_salt("C1") == 0xE58C3570F1AC23FD


def test_groups_are_numbered_by_their_place():
    group = GroupSpec(1, 4, RowOptimizer("sgd", 0.1), (), 10)
    with pytest.raises(ValueError, match="numbered from 0"):
        EmbeddingLayout((group,), (), 4, 0)

"""The space on disks: its division, its memory, and the sentences for what cannot be."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.config.schema import Run
from persia_cli.engines.placement import rows_of_server
from persia_cli.errors import CheckpointError, ConfigError
from persia_cli.plan.capacity import require_capacity, require_disks
from persia_cli.plan.embedding import embedding_layout, require_limits
from persia_cli.store.checkpoints.manifest import SavedTable
from persia_cli.store.cold.geometry import geometries, log_memory, rows_on_disk
from persia_cli.store.layout import EmbeddingLayout
from tests.support.runs import make_run
from tests.unit.plan.settings import TABLES

MIB = 2**20


def made(tables: Any = None, servers: int = 1, path: Any = "/disk", **embedding: Any) -> Run:
    size = embedding.pop("size", 64 * MIB)
    own = {"memory": 64 * MIB, "tables": tables or {}, "cold": {"path": str(path), "size": size}} | embedding
    cluster = {"kind": "local", "embedding_servers": servers}
    return make_run(list(tables or ["a", "b"]), embedding=own, cluster=cluster)


def memory_of(layout: EmbeddingLayout, servers: int) -> int:
    return sum(group.nbytes + log_memory(group, servers) for group in layout.feature_groups)


def saved(name: str, rows: int) -> SavedTable:
    return SavedTable(name, 8, "float32", 0, rows)


@given(TABLES, st.integers(1, 9), st.integers(2**20, 2**42), st.floats(0.1, 20.0))
def test_memory_and_disks_are_used_and_not_exceeded(
    tables: dict[str, Any], servers: int, memory: int, ratio: float
) -> None:
    size = int(memory * ratio)
    layout = None
    with suppress(ConfigError):
        layout = embedding_layout(made(tables, servers, memory=memory, size=size))
    assert layout or ratio > 1 or memory < 2**30
    if layout is None:
        return
    assert memory_of(layout, servers) <= memory
    files = [
        each.segments * each.segment_blocks * each.block_bytes
        for group in layout.groups
        for each in geometries(group, servers)
    ]
    assert 0.8 * size < sum(files) <= size
    assert sum(group.cold_bytes for group in layout.groups) <= size


def test_larger_groups_get_more_of_the_disks() -> None:
    tables = {"a": {"dim": 64}, "b": {"dim": 4, "hash_stack": {"rounds": 2, "size": 50}}}
    large, small = embedding_layout(made(tables, 2)).groups
    assert large.cold_bytes > 20 * small.cold_bytes
    assert rows_on_disk(small, 2) > 0


def test_rows_on_disks_cost_rows_in_memory() -> None:
    [without], [some], [many] = (
        embedding_layout(make_run(embedding={"memory": 64 * MIB})).groups,
        embedding_layout(made()).groups,
        embedding_layout(made(size=128 * MIB)).groups,
    )
    assert without.capacity > some.capacity > many.capacity
    # 12 bytes of an index that is 0.8 full, and a bit, for each place of a row; four of 16 segments do not count.
    per_row = (some.capacity - many.capacity) * without.nbytes / without.capacity
    assert per_row / (rows_on_disk(many, 1) - rows_on_disk(some, 1)) < 21


def test_with_a_number_of_rows_their_memory_comes_on_top() -> None:
    run = made(capacity=10_000)
    layout = embedding_layout(run)
    assert layout.groups[0].capacity == embedding_layout(make_run(embedding={"capacity": 10_000})).groups[0].capacity
    assert rows_of_server(run) > memory_of(layout, 1) > layout.groups[0].nbytes


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"size": MIB // 4}, "embedding.cold.size"),
        ({"size": 2 * MIB - 1, "servers": 4}, "embedding.cold.size"),
        ({"size": 4096 * MIB}, "embedding.memory"),
    ],
)
def test_too_little_space_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as failure:
        embedding_layout(made(**settings))
    assert str(failure.value).startswith(key)
    assert "\n" not in str(failure.value)


def test_more_rows_than_an_index_can_number_are_refused() -> None:
    layout = embedding_layout(made())
    layout = replace(layout, groups=(replace(layout.groups[0], cold_bytes=2**40),))
    require_limits(layout, 64)
    with pytest.raises(ConfigError, match=r"embedding\.cold\.size"):
        require_limits(layout, 1)


def test_the_least_size_that_is_named_is_enough() -> None:
    with pytest.raises(ConfigError) as failure:
        embedding_layout(made(size=1, servers=3))
    embedding_layout(made(size=str(failure.value).split()[-1], servers=3))


def test_dense_weights_have_no_log() -> None:
    run = made().model_copy(update={"mode": make_run(mode={"kind": "async"}).mode})
    layout = embedding_layout(run)
    assert layout.dense_group is not None
    assert [group.cold_bytes > 0 for group in layout.groups] == [True, False]


def test_a_checkpoint_may_have_more_rows_than_memory() -> None:
    layout = embedding_layout(made())
    most = layout.groups[0].capacity + rows_on_disk(layout.groups[0], 1)
    require_capacity([saved("a", most - 5), saved("b", 5)], layout, 1)
    with pytest.raises(CheckpointError):
        require_capacity([saved("a", most), saved("b", 5)], layout, 1)


def test_places_that_cannot_be_used_are_refused_before_a_job_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, size in [("none/rows", MIB), ("file", MIB), ("file/rows", MIB), ("rows", 2**59), ("/proc/self", MIB)]:
        with pytest.raises(ConfigError) as failure:
            require_disks(made(path=tmp_path / path, size=size), tmp_path / "run")
        assert str(failure.value).startswith(f"embedding.cold.path={tmp_path / path}:")
    require_disks(made(path=tmp_path / "rows", size=MIB), tmp_path / "run")
    assert not (tmp_path / "rows").exists()
    elsewhere = made(path=tmp_path / "none/rows")
    hosts = make_run(cluster={"kind": "slurm"}).cluster
    require_disks(elsewhere.model_copy(update={"cluster": hosts}), tmp_path / "run")

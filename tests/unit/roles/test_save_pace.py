"""A save during training takes a small share of the processors; one that a client awaits takes all it can get."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.roles.embedding_server.saving import (
    IDLE_S,
    QUIET_S,
    SHARE,
    WHOLE,
    SavePace,
    ShardSaving,
    servers_sharing,
)
from persia_cli.store.checkpoints import snapshot
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer, TableSpec, table_salt
from persia_cli.store.shard import Shard
from tests import naive
from tests.conftest import poll_for

ROWS = 400
TABLE = TableSpec("a", 0, table_salt("a"), 0.1)


class Clock:
    """Seconds that pass on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("servers", [1, 3])
def test_during_requests_all_servers_together_take_their_share(servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(4))
    clock = Clock()
    pace, used = SavePace(servers, False, clock), 0.0
    rng, begun = np.random.default_rng(1), clock.now
    while clock.now < begun + 100.0:
        clock.now += 0.0005
        pace.note_request()
        if pace.due_in_s() == 0.0:
            cost = float(rng.uniform(0.0002, 0.003))
            clock.now += cost
            pace.note_taken(cost)
            used += cost * WHOLE
    assert used * servers / 100.0 == pytest.approx(SHARE * 4, rel=0.1)
    assert used * servers / 100.0 < SHARE * 4


def test_pinned_servers_share_processors_only_with_equal_pins() -> None:
    words = ["cluster=local", "cluster.embedding_servers=3"]
    for pin, beside in (("{}", [3, 3, 3]), ("{embedding_server: 0-3}", [3, 3, 3])):
        cluster = compose_run([*words, f"cluster.pin={pin}"]).cluster
        assert [servers_sharing(cluster, each) for each in range(3)] == beside
    cluster = compose_run([*words, "cluster.pin={embedding_server: [0-3, 4-7, 0-3]}"]).cluster
    assert [servers_sharing(cluster, each) for each in range(3)] == [2, 1, 2]


def test_once_requests_stop_it_waits_no_more() -> None:
    clock = Clock()
    pace = SavePace(1, False, clock)
    pace.note_taken(1000.0)
    clock.now += 5.0
    pace.note_request()
    assert pace.due_in_s() == pytest.approx(QUIET_S)
    clock.now += QUIET_S
    assert pace.due_in_s() == 0.0
    pace.note_taken(1000.0)
    assert pace.due_in_s() == 0.0


def test_one_that_is_awaited_never_waits() -> None:
    pace = SavePace(1, True, Clock())
    pace.note_taken(1000.0)
    pace.note_request()
    assert pace.due_in_s() == 0.0


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> Shard:
    """Rows of which each partition is a portion, with space for few that change."""
    monkeypatch.setattr(snapshot, "PORTION_BYTES", 1)
    monkeypatch.setattr(snapshot, "COPIED_BYTES", 0)
    monkeypatch.setattr(snapshot, "COPIED_FRACTION", 0.2)
    group = GroupSpec(0, 4, RowOptimizer("adagrad", 0.1), (TABLE,), 800, 40)
    shard = Shard(EmbeddingLayout((group,), (), 1), 0, 1)
    shard.look_up(0, keys(range(ROWS)), np.zeros(ROWS, np.uint16), 1, True)
    return shard


def keys(ids: Any) -> Any:
    return np.array(naive.keys_of(TABLE.salt, list(ids)), np.uint64)


@pytest.fixture
def saving(shard: Shard, tmp_path: Path) -> Iterator[ShardSaving]:
    """A save whose next rows are due in a very long time by its pace."""
    pace = SavePace(1, False, Clock())
    pace.note_taken(1e9)
    with ThreadPoolExecutor(1) as writer:
        begun = ShardSaving(shard, tmp_path, writer, lambda: None, lambda rows: None, pace=pace)
        yield begun
        begun.abandon()


def taken(saving: ShardSaving, awaited: bool) -> int:
    """Number of portions that are taken in many rounds of the loop with a fast disk."""
    before = len(saving._snapshot._snapshots[0]._edges)
    for _ in range(60):
        poll_for(lambda: saving.can_take or saving._snapshot.over, 30.0, "the writing thread")
        saving.go_on(awaited)
    return before - len(saving._snapshot._snapshots[0]._edges)


def test_rows_that_are_not_due_are_not_taken_unless_look_ups_wait(saving: ShardSaving) -> None:
    assert saving.patience_s(awaited=False) == IDLE_S
    assert taken(saving, awaited=False) == 0
    assert saving.patience_s(awaited=True) == 0.0
    assert taken(saving, awaited=True) > 1
    assert saving._snapshot.over


def test_rows_are_taken_in_time_where_many_change(shard: Shard, saving: ShardSaving) -> None:
    """Half of the space for rows that change is full: so many rows are taken that more than half is free again."""
    for first in range(0, ROWS, 20):
        wanted = keys(range(first, first + 20))
        assert saving.has_space([(wanted, np.zeros(20, np.uint16))], create=True), "look-ups never waited"
        shard.look_up(0, wanted, np.zeros(20, np.uint16), 2, True)
        taken(saving, awaited=False)
    assert saving.pauses == 0
    assert 0 < len(saving._snapshot._snapshots[0]._edges) < 40


def test_a_share_is_of_the_processors_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, dues = Clock(), []
    for processors in (1, 16):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, size=processors: range(size))
        pace = SavePace(1, False, clock)
        pace.note_request()
        pace.note_taken(0.001)
        dues.append(pace.due_in_s())
    assert dues[0] == pytest.approx(16 * dues[1])


def test_an_evaluation_is_not_disturbed_more_than_training(shard: Shard, tmp_path: Path) -> None:
    clock = Clock()
    pace = SavePace(1, False, clock)
    pace.note_taken(1e9)
    with ThreadPoolExecutor(1) as writer:
        saving = ShardSaving(shard, tmp_path, writer, lambda: None, lambda rows: None, pace=pace)
        wanted = keys(range(ROWS))
        for _ in range(10):
            clock.now += QUIET_S * 0.9
            assert saving.has_space([(wanted, np.zeros(ROWS, np.uint16))], create=False), "it changes nothing"
            assert taken(saving, awaited=False) == 0
        clock.now += QUIET_S * 1.1
        assert taken(saving, awaited=False) > 0
        saving.abandon()

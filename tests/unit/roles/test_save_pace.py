"""A save during training takes a small share of the processors; one that a client awaits takes all it can get."""

import os
import threading

import numpy as np
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.roles.embedding_server.saving import (
    NICENESS,
    QUIET_S,
    SHARE,
    WHOLE,
    SavePace,
    lower_thread_priority,
    servers_sharing,
)


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
        pace.record_request()
        if pace.due_in_s() == 0.0:
            cost = float(rng.uniform(0.0002, 0.003))
            clock.now += cost
            pace.record_copy(cost)
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
    pace.record_copy(1000.0)
    clock.now += 5.0
    pace.record_request()
    assert pace.due_in_s() == pytest.approx(QUIET_S)
    clock.now += QUIET_S
    assert pace.due_in_s() == 0.0
    pace.record_copy(1000.0)
    assert pace.due_in_s() == 0.0


def test_one_that_is_awaited_never_waits() -> None:
    pace = SavePace(1, True, Clock())
    pace.record_copy(1000.0)
    pace.record_request()
    assert pace.due_in_s() == 0.0


@pytest.mark.parametrize(("more", "expected"), [(0, NICENESS), (NICENESS + 3, NICENESS + 3)])
def test_a_writing_thread_is_as_nice_as_its_process_or_nicer(more: int, expected: int) -> None:
    found: list[int] = []

    def write() -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), more))
        lower_thread_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, thread))

    begun_with = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert found == [max(expected, begun_with)]

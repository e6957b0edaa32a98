"""Membership: joining, valid incarnations, silence, and a lack of progress."""

import pytest

from persia_cli.control.membership import LONGEST_GAP_S, Membership, RunningClock, StallDetector
from persia_cli.errors import WireError
from persia_cli.wire.message import ProcessId


def membership() -> Membership:
    return Membership({"embedding-server": 2, "nn-worker": 1})


def test_replicas_join_and_become_ready():
    members = membership()
    assert members.missing == members.unready == ["embedding-server-0", "embedding-server-1", "nn-worker-0"]
    server = members.join("embedding-server", 1, process=ProcessId(7), host="a", address="tcp://127.0.0.1:5", now=1.0)
    assert (server.name, server.incarnation, server.last_seen_s) == ("embedding-server-1", 1, 1.0)
    assert members.missing == ["embedding-server-0", "nn-worker-0"]
    assert members.unready == ["embedding-server-0", "nn-worker-0", "embedding-server-1"]
    server.ready = True
    members.join("nn-worker", 0, process=ProcessId(8), host="a", address="tcp://127.0.0.1:6", now=1.0)
    members.join("embedding-server", 0, process=ProcessId(9), host="b", address="tcp://127.0.0.1:4", now=1.0)
    assert members.missing == []
    assert members.unready == ["nn-worker-0", "embedding-server-0"]
    assert members.addresses() == {
        "embedding-server": ["tcp://127.0.0.1:4", "tcp://127.0.0.1:5"],
        "nn-worker": ["tcp://127.0.0.1:6"],
    }


def test_only_the_same_process_may_repeat_its_hello():
    members = membership()
    first = members.join("nn-worker", 0, process=ProcessId(7), host="a", address="x", now=1.0)
    assert members.join("nn-worker", 0, process=ProcessId(7), host="a", address="x", now=2.0) is first
    assert first.last_seen_s == 2.0
    for other in (
        {"process": ProcessId(7, 1)},
        {"process": ProcessId(7, 0, "elsewhere")},
        {"host": "b"},
        {"address": "y"},
    ):
        with pytest.raises(WireError, match="nn-worker-0 is already running as process 7 on a"):
            members.join("nn-worker", 0, **{"process": ProcessId(7), "host": "a", "address": "x", **other}, now=3.0)


def test_only_counters_that_change_are_progress() -> None:
    detector = StallDetector()
    detector.observe("a", {"steps": 1}, now=10.0)
    detector.observe("b", {"steps": 1}, now=11.0)
    assert detector.still_s(12.0) == 1.0
    detector.observe("a", {"steps": 1}, now=20.0)
    detector.observe("b", {"steps": 1}, now=21.0)
    assert detector.still_s(22.0) == 11.0
    detector.observe("a", {"steps": 2}, now=23.0)
    assert detector.still_s(24.0) == 1.0


def test_a_new_process_takes_the_place_of_a_dead_one():
    members = membership()
    first = members.join("nn-worker", 0, process=ProcessId(7), host="a", address="x", now=1.0)
    first.ready = True
    first.die(now=5.0)
    assert members.silent(100.0, 1.0) == []
    assert [member.name for member in members.replaced] == ["nn-worker-0"]
    with pytest.raises(WireError, match="process 7 of nn-worker-0 has died"):
        members.find("nn-worker", 0, 1)
    second = members.join("nn-worker", 0, process=ProcessId(8), host="b", address="y", now=6.0)
    assert (second.incarnation, second.lost_s, second.ready) == (2, 5.0, False)
    assert members.join("nn-worker", 0, process=ProcessId(8), host="b", address="y", now=7.0) is second
    assert members.find("nn-worker", 0, 2) is second
    with pytest.raises(WireError, match="is at incarnation 2"):
        members.find("nn-worker", 0, 1)
    with pytest.raises(WireError, match="already running as process 8 on b"):
        members.join("nn-worker", 0, process=ProcessId(9), host="b", address="z", now=8.0)
    second.ready = True
    assert members.replaced == []


def test_time_passes_only_while_it_is_read() -> None:
    awake = RunningClock(100.0)
    assert awake.at(100.0) == 0.0
    assert awake.at(100.5) == 0.5
    assert awake.at(100.5 + LONGEST_GAP_S) == 0.5 + LONGEST_GAP_S
    stopped = awake.at(5000.0)
    assert stopped == 0.5 + 2 * LONGEST_GAP_S
    assert awake.at(5000.25) == stopped + 0.25

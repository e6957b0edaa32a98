"""Membership: every place is taken by one process, and only its present life is heard."""

import pytest

from persia_cli.control.membership import Membership
from persia_cli.errors import WireError


@pytest.fixture
def members() -> Membership:
    """A job of one server and two ranks, of which the server and the first rank have joined."""
    members = Membership({"embedding-server": 1, "nn-worker": 2})
    members.join("embedding-server", 0, 100, "here", "ipc://s", now=1.0)
    members.join("nn-worker", 0, 200, "here", "ipc://n0", now=2.0)
    return members


def test_a_replica_that_joins_begins_its_first_life(members: Membership) -> None:
    member = members.members["nn-worker", 0]
    assert (member.name, member.incarnation, member.ready, member.last_seen_s) == ("nn-worker-0", 1, False, 2.0)
    assert members.find("nn-worker", 0, 1) is member


@pytest.mark.parametrize("role", ["", "coordinator", "nn-worker-0", "NN-WORKER"])
def test_a_role_that_the_job_has_not_is_refused(members: Membership, role: str) -> None:
    with pytest.raises(WireError, match=f"no role '{role}'; it has embedding-server, nn-worker"):
        members.join(role, 0, 1, "here", "", now=0.0)


@pytest.mark.parametrize("index", [-1, 2, 2**40])
def test_an_index_out_of_range_is_refused(members: Membership, index: int) -> None:
    with pytest.raises(WireError, match=f"2 replica.s. of nn-worker, so there is no nn-worker-{index}"):
        members.join("nn-worker", index, 1, "here", "", now=0.0)


@pytest.mark.parametrize("other", [(201, "here", "ipc://n0"), (200, "there", "ipc://n0"), (200, "here", "ipc://n1")])
def test_a_place_that_is_taken_is_refused_and_kept(members: Membership, other: tuple[int, str, str]) -> None:
    with pytest.raises(WireError, match="nn-worker-0 is already running as process 200 on here"):
        members.join("nn-worker", 0, *other, now=9.0)
    kept = members.find("nn-worker", 0, 1)
    assert (kept.pid, kept.host, kept.address, kept.last_seen_s) == (200, "here", "ipc://n0", 2.0)


def test_the_same_process_may_say_hello_again(members: Membership) -> None:
    first = members.members["nn-worker", 0]
    assert members.join("nn-worker", 0, 200, "here", "ipc://n0", now=5.0) is first
    assert (first.incarnation, first.last_seen_s) == (1, 5.0)


@pytest.mark.parametrize(("role", "index"), [("nn-worker", 1), ("nn-worker", 2), ("stranger", 0)])
def test_who_has_not_joined_is_refused(members: Membership, role: str, index: int) -> None:
    with pytest.raises(WireError, match=f"{role}-{index} has not joined"):
        members.find(role, index, 1)


@pytest.mark.parametrize("incarnation", [0, 1, 3])
def test_other_lives_are_refused(members: Membership, incarnation: int) -> None:
    members.members["nn-worker", 0].incarnation = 2
    with pytest.raises(WireError, match=f"nn-worker-0 is in life 2; life {incarnation} is over"):
        members.find("nn-worker", 0, incarnation)


def test_who_is_missing_and_who_is_not_ready(members: Membership) -> None:
    assert members.missing == ["nn-worker-1"]
    members.members["embedding-server", 0].ready = True
    assert members.unready == ["nn-worker-1", "nn-worker-0"]
    members.join("nn-worker", 1, 300, "here", "ipc://n1", now=3.0)
    assert members.missing == []
    for member in members.members.values():
        member.ready = True
    assert members.unready == []


def test_addresses_are_in_the_order_of_index() -> None:
    members = Membership({"nn-worker": 11, "data-loader": 1})
    for index in reversed(range(11)):
        members.join("nn-worker", index, index, "here", f"ipc://n{index}", now=0.0)
    assert members.addresses() == {"nn-worker": [f"ipc://n{index}" for index in range(11)], "data-loader": []}


def test_the_silent_and_the_stuck_are_named(members: Membership) -> None:
    assert members.silent(now=4.0, limit_s=3.0) == []
    assert [member.name for member in members.silent(now=4.5, limit_s=3.0)] == ["embedding-server-0"]
    members.members["nn-worker", 0].progress_age_s = 3.5
    assert [member.name for member in members.silent(now=4.0, limit_s=3.0)] == ["nn-worker-0"]

"""Machines that a job cannot use are named before anything starts on them."""

import pytest

from persia_cli import __version__
from persia_cli.config.compose import compose_run
from persia_cli.engines.hosts.machines import address_of_coordinator, require_usable
from persia_cli.engines.hosts.placement import placement_of
from persia_cli.engines.hosts.session import HostFacts
from persia_cli.errors import ConfigError

GIB = 2**30
RUN = compose_run(["cluster=hosts", "cluster.hosts.list=[a,b]", "embedding.memory=4GiB"])
PLACED = placement_of(RUN)


def facts(**changed: object) -> dict[str, HostFacts]:
    """Facts of both machines, those of b with changes."""
    usual = {"version": __version__, "host": "x", "address": "10.0.0.1", "memory": 8 * GIB}
    return {"a": HostFacts(**usual), "b": HostFacts(**usual | changed)}  # type: ignore[arg-type]


def test_equal_versions_with_room_will_do() -> None:
    require_usable(RUN, PLACED, facts())


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"version": "0.0.9"}, f"b has persia 0.0.9, and this machine {__version__}; install the same on both"),
        ({"memory": 2 * GIB}, "b has 2.0 GiB of memory, and the rows of its embedding servers may take 4.2 GiB; lower"),
    ],
)
def test_other_versions_and_too_little_memory_are_refused(changed: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        require_usable(RUN, PLACED, facts(**changed))
    assert sentence in str(refused.value)


def test_the_coordinator_listens_where_ssh_reaches_it_or_where_the_user_says() -> None:
    assert address_of_coordinator(PLACED, facts()) == "tcp://10.0.0.1:*"
    given = compose_run(["cluster=hosts", "cluster.hosts.list=[{ssh: a, address: 10.9.9.9}, b]"])
    assert address_of_coordinator(placement_of(given), facts()) == "tcp://10.9.9.9:*"


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1", "a is reached at 127.0.0.1, where no other machine reaches it; give the one that the other"),
        ("fe80::1", "a is reached at fe80::1, an IPv6 address; give the one that"),
        ("", "a does not say at which address ssh reaches it; give the one that"),
    ],
)
def test_an_address_that_others_do_not_reach_is_refused(address: str, sentence: str) -> None:
    found = facts()
    found["a"] = HostFacts(__version__, "x", address, GIB)
    with pytest.raises(ConfigError) as refused:
        address_of_coordinator(PLACED, found)
    assert sentence in str(refused.value)


def test_one_machine_alone_may_be_reached_at_loopback() -> None:
    alone = placement_of(compose_run(["cluster=hosts", "cluster.hosts.list=[a]"]))
    assert address_of_coordinator(alone, {"a": HostFacts(__version__, "x", "127.0.0.1", GIB)}) == "tcp://127.0.0.1:*"

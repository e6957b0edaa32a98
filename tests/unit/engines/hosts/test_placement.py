"""Placement of replicas on machines."""

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines.hosts.placement import placement_of
from persia_cli.errors import ConfigError

BIG = ["embedding_servers=3", "embedding_workers=2", "nn_workers=2", "data_loaders=3"]


def placed(hosts: str, *counts: str) -> dict[str, str]:
    words = ["cluster=hosts", f"cluster.hosts={hosts}", *(f"cluster.{count}" for count in counts)]
    return {replica.name: host.ssh for replica, host in placement_of(compose_run(words)).items()}


def test_ranks_begin_at_the_first_machine_and_servers_at_the_one_after_the_last_rank() -> None:
    assert placed("[a,b,c,d]", *BIG) == {
        "coordinator-0": "a",
        "embedding-server-0": "c",
        "embedding-server-1": "d",
        "embedding-server-2": "a",
        "embedding-worker-0": "c",
        "embedding-worker-1": "d",
        "data-loader-0": "a",
        "data-loader-1": "b",
        "data-loader-2": "a",
        "nn-worker-0": "a",
        "nn-worker-1": "b",
    }


def test_embedding_workers_may_be_next_to_ranks() -> None:
    found = placed("[a,b,c,d]", "placement=beside_ranks", *BIG)
    assert found == placed("[a,b,c,d]", *BIG) | {"embedding-worker-0": "a", "embedding-worker-1": "b"}


def test_packed_replicas_leave_machines_to_spare_but_for_roles_that_are_named() -> None:
    assert set(placed("[a,b,c]", "placement=packed", *BIG).values()) == {"a"}
    found = placed("[{ssh: a, roles: [nn-worker]}, b, c]", "placement=packed", *BIG)
    assert {name: host for name, host in found.items() if host != "b"} == {"nn-worker-0": "a", "nn-worker-1": "a"}


def test_roles_pin_replicas_and_machines_without_them_have_the_rest() -> None:
    hosts = "[{ssh: a, roles: [nn-worker]}, {ssh: b, roles: [embedding-server, embedding-server-1]}, c, "
    found = placed(hosts + "{ssh: d, roles: [embedding-server]}]", *BIG)
    by_host = {name: [replica for replica, host in found.items() if host == name] for name in "abcd"}
    assert by_host == {
        "a": ["nn-worker-0", "nn-worker-1"],
        "b": ["embedding-server-0", "embedding-server-1", "embedding-server-2"],
        "c": ["coordinator-0", "embedding-worker-0", "embedding-worker-1", *(f"data-loader-{i}" for i in range(3))],
        "d": [],
    }


@pytest.mark.parametrize(
    ("hosts", "sentence"),
    [
        ("[]", "cluster=hosts needs machines: give cluster.hosts=[NAME,…], as ssh knows them"),
        ("[{ssh: a, roles: [nn-worker]}]", "no machine is for coordinator-0, since all have roles; add coordinator to"),
        ("[{ssh: a, roles: [trainer]}, b]", "a has the role trainer, and this job has no such replica; name one of co"),
        ("[{ssh: a, roles: [nn-worker-1]}, b]", "a has the role nn-worker-1, and this job has no such replica"),
        ("[{ssh: a, roles: [nn-worker-0]}, {ssh: b, roles: [nn-worker-0]}, c]", "nn-worker-0 is in roles of a and b; "),
    ],
)
def test_what_cannot_be_placed_is_refused(hosts: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        placed(hosts)
    assert sentence in str(refused.value)

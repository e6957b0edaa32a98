"""Machines that a job cannot use are named before anything starts on them."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from persia_cli import __version__
from persia_cli.config.compose import compose_run
from persia_cli.engines.hosts import machines
from persia_cli.engines.hosts.machines import address_of_coordinator, ask, require_usable
from persia_cli.engines.hosts.placement import placement_of, settings_of
from persia_cli.engines.hosts.session import HostFacts
from persia_cli.errors import ConfigError, RoleError
from persia_cli.plan.pinning import MachineProcessors

GIB = 2**30
RUN = compose_run(["cluster=hosts", "cluster.hosts=[a,b]", "embedding.memory=4GiB"])
PLACED = placement_of(RUN)
PROCESSORS = MachineProcessors("0-3", "0-7", {0: "0-3", 1: "4-7"})


def facts(**changed: object) -> dict[str, HostFacts]:
    """Facts of both machines, those of b with changes."""
    usual = {"version": __version__, "host": "x", "address": "10.0.0.1", "memory": 8 * GIB, "processors": PROCESSORS}
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


def test_what_a_machine_says_of_itself_is_read_as_it_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said = facts()["a"]
    answer = SimpleNamespace(stdout="a greeting\n" + json.dumps({"facts": asdict(said)}) + "\n")
    monkeypatch.setattr(machines, "run_on", lambda *words: answer)
    hosts = settings_of(RUN)
    assert ask(hosts, hosts.hosts) == {"a": said, "b": said}


def test_another_version_that_says_other_things_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = settings_of(RUN)
    answer = SimpleNamespace(stdout=json.dumps({"facts": {"version": "9.9.9", "cores": 4}}))
    monkeypatch.setattr(machines, "run_on", lambda *words: answer)
    with pytest.raises(ConfigError, match=r"^a has persia 9\.9\.9, and this machine "):
        ask(hosts, hosts.hosts)
    answer.stdout = "hello\n"
    with pytest.raises(RoleError, match=r"a answers what persia .* does not: 'hello"):
        ask(hosts, hosts.hosts)


def test_processors_that_a_machine_does_not_have_are_refused_by_its_name() -> None:
    words = ["cluster=hosts", "cluster.hosts=[a,b]", "cluster.pin={embedding_server: 'node:1', nn_worker: 3}"]
    run = compose_run(words)
    free = MachineProcessors("0-7", "0-7", {0: "0-3", 1: "4-7"})
    usable = facts(processors=free)
    require_usable(run, placement_of(run), usable)
    sentence = (
        r"^cluster.pin.embedding_server=node:1 for embedding-server-0: processes may not use any processor of node 1 "
        r"of b, only 0-3, by a control group or taskset$"
    )
    with pytest.raises(ConfigError, match=sentence):
        require_usable(run, placement_of(run), facts())


def test_the_coordinator_listens_where_ssh_reaches_it_or_where_the_user_says() -> None:
    assert address_of_coordinator(PLACED, facts()) == "tcp://10.0.0.1:*"
    given = compose_run(["cluster=hosts", "cluster.hosts=[{ssh: a, address: 10.9.9.9}, b]"])
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
    found["a"] = HostFacts(__version__, "x", address, GIB, PROCESSORS)
    with pytest.raises(ConfigError) as refused:
        address_of_coordinator(PLACED, found)
    assert sentence in str(refused.value)


def test_one_machine_alone_may_be_reached_at_loopback() -> None:
    alone = placement_of(compose_run(["cluster=hosts", "cluster.hosts=[a]"]))
    assert (
        address_of_coordinator(alone, {"a": HostFacts(__version__, "x", "127.0.0.1", GIB, PROCESSORS)})
        == "tcp://127.0.0.1:*"
    )

"""Processors by name, and those that a replica cannot be pinned to."""

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.errors import ConfigError
from persia_cli.plan.job import Replica, all_replicas
from persia_cli.plan.pinning import (
    MachineProcessors,
    chosen,
    require_processors,
    require_threads,
    shared_processors,
)

MACHINE = MachineProcessors(usable="0-5,8-15", online="0-15", nodes={0: "0-7", 1: "8-15", 2: ""})
LOCAL = ["conf=synthetic", "cluster=local", "cluster.nn_workers=2"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3", {3}),
        ("0-2,8", {0, 1, 2, 8}),
        ("4,4-5", {4, 5}),
        ("node:0", {0, 1, 2, 3, 4, 5}),
        ("node:1,0", {0, 8, 9, 10, 11, 12, 13, 14, 15}),
    ],
)
def test_processors_are_named_by_number_range_or_node(text: str, found: set[int]) -> None:
    assert chosen(text, MACHINE, "--cpus") == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("14-17", "--cpus: b has no processor 16-17; it has 0-15"),
        ("0,6-7,8", "--cpus: processes may not use processor 6-7 of b, only 0-5,8-15, by a control group or taskset"),
        ("node:3", "--cpus: b has no NUMA node 3; it has 0-2"),
        ("node:2", "--cpus: processes may not use any processor of node 2 of b, only 0-5,8-15, by a control group or"),
        ("x", "--cpus: x is no processor; name some, such as 0-3,8 or node:0"),
        ("0,5-3", "--cpus: 5-3 is no range of processors; name the lower one first, such as 0-3"),
        ("0,,1", "--cpus: nothing is no processor"),
        ("", "--cpus: nothing is no processor"),
    ],
)
def test_others_are_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        chosen(text, MACHINE, "--cpus", "b")
    assert str(refused.value).startswith(sentence)


def test_a_text_is_for_all_replicas_of_a_role_and_a_list_for_each() -> None:
    run = compose_run([*LOCAL, "cluster.pin={nn_worker: ['0-1', '2,4'], coordinator: 5, embedding_server: 'node:1'}"])
    pinned = {each.name: run.cluster.processors_of(each.role, each.index) for each in all_replicas(run)}
    assert pinned == {
        "coordinator-0": "5",
        "embedding-server-0": "node:1",
        "embedding-worker-0": "",
        "data-loader-0": "",
        "nn-worker-0": "0-1",
        "nn-worker-1": "2,4",
    }
    for replica in all_replicas(run):
        require_processors(run, replica, MACHINE)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cluster.pin.nn_worker=3-1"], "cluster.pin.nn_worker"),
        (["cluster.pin.nn_worker=node1"], "node1 is no processor; name some, such as 0-3,8 or node:0"),
        (["cluster.pin.nn_worker=[0,1,2]"], "cluster.pin.nn_worker has a list of 3"),
        (["cluster.pin.nn_workers=0"], "cluster.pin.nn_workers: no such key; did you mean nn_worker?"),
        (["cluster=kubernetes", "cluster.pin.nn_worker=0"], "no such key where cluster.kind=kubernetes; "),
    ],
)
def test_pins_that_mean_nothing_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_run([*LOCAL, *words])
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ("nn_worker: ['0', '1']", None),
        ("nn_worker: 'node:0', embedding_server: 'node:0'", None),
        ("nn_worker: ['0-1', '1,4']", "nn-worker-0, nn-worker-1 share processors 1 of h2, "),
        ("nn_worker: 0-1, data_loader: 1", "data-loader-0, nn-worker-0, nn-worker-1 share processors "),
    ],
)
def test_replicas_that_are_pinned_to_the_same_processors_are_named(pins: str, said: str | None) -> None:
    run = compose_run([*LOCAL, f"cluster.pin={{{pins}}}"])
    found = shared_processors(run, all_replicas(run), "h2")
    assert (found is None) == (said is None)
    assert (found or "").startswith(said or "")
    assert shared_processors(run, [Replica("nn-worker", 1)], "h2") is None


def test_processors_must_exist_and_suffice_for_the_threads() -> None:
    run = compose_run([*LOCAL, "cluster.pin.nn_worker=[0,99]"])
    with pytest.raises(ConfigError, match=r"^cluster.pin.nn_worker=99 for nn-worker-1: h2 has no processor 99; it has"):
        require_processors(run, Replica("nn-worker", 1), MACHINE, "h2")
    run = compose_run([*LOCAL, "train.threads=2", "cluster.pin.nn_worker=[0-1,'4']"])
    require_processors(run, Replica("nn-worker", 0), MACHINE)
    with pytest.raises(ConfigError, match=r"train.threads=2 "):
        require_processors(run, Replica("nn-worker", 1), MACHINE)
    with pytest.raises(ConfigError, match=r"train\.threads=2"):
        require_threads(run, {4})
    require_threads(compose_run([*LOCAL, "train.threads=2"]), {4})

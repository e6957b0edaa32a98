"""Which drills there are, and what is refused."""

import pytest

from persia_cli.drill.plan import AT_RANDOM, KINDS, Disturbance, chosen, drawn, split_words
from persia_cli.errors import UserError

REPLICAS = ["coordinator-0", "embedding-server-0", "embedding-server-1", "embedding-worker-0", "data-loader-0",
            "nn-worker-0"]  # fmt: skip


def test_names_and_settings_are_told_apart():
    assert split_words(["kill", "conf=a", "nn-worker-0", "x=1"]) == (["kill", "nn-worker-0"], ["conf=a", "x=1"])


def test_a_role_alone_is_its_first_replica():
    assert chosen(["kill", "nn-worker"], 3, 2.0, REPLICAS) == Disturbance("kill", ("nn-worker-0",), 3, 0.0)
    assert chosen(["stop", "embedding-server-1"], None, 2.0, REPLICAS).for_s == 2.0
    assert chosen(["node"], 3, 2.0, REPLICAS).ends_all
    assert chosen(["kill", "launcher"], 3, 2.0, REPLICAS).ends_all


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "name a kind of drill (kill, stop, slow, cut, fill-disk, corrupt-frame, node), or give --random N"),
        (["burn"], "there is no drill burn; there are kill, stop,"),
        (["kill"], "persia drill kill takes a target or several, and there are 0; this job has coordinator-0,"),
        (["cut", "nn-worker"], "persia drill cut takes two targets, and there are 1"),
        (["node", "nn-worker"], "persia drill node takes no target, and there are 1"),
        (["kill", "nn-worker-7"], "there is no nn-worker-7 in this job to kill; it has coordinator-0,"),
        (["stop", "launcher"], "there is no launcher in this job to stop"),
        (["kill", "nn-worker", "nn-worker-0"], "the same target is named twice"),
        (["corrupt-frame", "data-loader"], "data-loader-0 listens nowhere, so no frame can be sent to it"),
    ],
)
def test_what_there_is_not_is_refused_in_a_sentence(names, said):
    with pytest.raises(UserError) as error:
        chosen(names, 1, 2.0, REPLICAS)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", range(50))
def test_random_drills_are_those_of_their_seed_and_possible(seed):
    drills = drawn(10, seed, 100, 500, REPLICAS)
    assert drills == drawn(10, seed, 100, 500, REPLICAS)
    assert drills != drawn(10, seed + 1, 100, 500, REPLICAS)
    steps = [each.step for each in drills]
    assert steps == sorted(set(steps))
    assert all(140 <= step < 460 for step in steps)
    for each in drills:
        assert chosen([each.kind, *each.targets], each.step, each.for_s, REPLICAS) == each


def test_random_drills_are_of_every_kind_that_a_job_outlives():
    kinds = {each.kind for seed in range(20) for each in drawn(5, seed, 0, 1000, REPLICAS)}
    assert kinds == set(AT_RANDOM) <= set(KINDS)


def test_too_many_for_the_steps_are_refused():
    with pytest.raises(UserError, match="9 drills do not fit into the 10 steps of this training"):
        drawn(9, 0, 0, 10, REPLICAS)

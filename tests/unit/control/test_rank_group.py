"""The group of ranks: whole when all are here, and another one as soon as one of them has died."""

import random

from persia_cli.control.rank_group import RankGroup


def test_the_first_group_is_whole_with_the_last_rank():
    group = RankGroup(3)
    assert [group.join(rank) for rank in (2, 0, 2, 1)] == [False, False, False, True]
    assert group.is_whole
    assert group.number == 0
    assert not group.join(1)  # a repeat


def test_one_that_dies_before_the_group_is_whole_only_leaves_it():
    group = RankGroup(2)
    group.join(0)
    group.lose(0)
    assert not group.join(1)
    assert group.join(0)
    assert group.number == 0


def test_after_a_death_all_begin_again():
    group = RankGroup(2)
    group.join(0), group.join(1)
    group.lose(1)
    assert (group.number, group.is_whole) == (1, False)
    assert not group.join(1)
    group.lose(0)  # it ended because it heard of that
    assert group.number == 1
    assert group.join(0)


def test_whatever_happens_no_two_processes_of_a_rank_are_in_one_group():
    for seed in range(200):
        rng = random.Random(seed)
        group, alive = RankGroup(3), {}
        for process in range(60):
            rank = rng.randrange(3)
            if rank in alive:
                # Those of an earlier group end before long; no process joins in the place of a living one.
                group.lose(rank)
                del alive[rank]
            else:
                group.join(rank)
                alive[rank] = process
        assert group.is_whole <= (len(alive) == 3)

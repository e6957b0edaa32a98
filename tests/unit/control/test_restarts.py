"""Number and delay of new processes of a replica."""

import pytest

from persia_cli.control.restarts import MAX_WAIT_S, RestartPolicy, ended_how


def test_each_restart_waits_longer_until_there_are_too_many():
    policy = RestartPolicy(max_restarts=4, window_s=100.0)
    assert [policy.next("a", now) for now in (0.0, 1.0, 2.0, 3.0, 4.0)] == [0.0, 1.0, 2.0, 4.0, None]
    assert policy.next("b", 4.0) == 0.0  # each replica for itself


def test_restarts_outside_the_window_do_not_count_and_waits_are_bounded():
    policy = RestartPolicy(max_restarts=1, window_s=100.0)
    assert [policy.next("a", now) for now in (0.0, 100.0, 100.5, 200.0, 201.0)] == [0.0, None, 0.0, None, 0.0]
    policy = RestartPolicy(max_restarts=1000, window_s=100.0)
    assert max(policy.next("a", 0.0) or 0.0 for _ in range(1000)) == MAX_WAIT_S
    assert RestartPolicy(0, 100.0).next("a", 0.0) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "was killed by SIGKILL (out of memory?)"),
        (-11, "was killed by SIGSEGV"),
        (1, "ended with exit code 1"),
        (143, "ended with exit code 143"),
    ],
)
def test_an_end_has_a_phrase(code, words):
    assert ended_how(code) == words

"""A process that is killed at any moment leaves a shard that the next one repairs, to the bit."""

import ctypes
import os
import signal
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from persia_cli.errors import MemoryFileError
from tests.support.killed import Job, differences, job_of, kill_by_chance, kill_in_last_step
from tests.support.shards import BY_KIND
from tests.support.stepped import each_state

SGD, ADAGRAD, ADAM, ROWWISE = (BY_KIND[kind] for kind in ("sgd", "adagrad", "adam", "rowwise_adagrad"))
ALL = [*product(BY_KIND.values(), ("float32", "bfloat16", "float16", "int8"), (1, 16, 17, 64))]
SOME = [
    (ADAGRAD, "float32", 16),
    pytest.param(ADAM, "float16", 64, marks=pytest.mark.slow),
    pytest.param(SGD, "bfloat16", 17, marks=pytest.mark.slow),
    pytest.param(ROWWISE, "int8", 17, marks=pytest.mark.slow),
    pytest.param(ROWWISE, "float32", 1, marks=pytest.mark.slow),
]
KINDS = ("row", "insert", "evict", "move", "no row")


POLICIES = (
    {},
    {"when_full": "evict_lfu", "epoch_bits": 2},
    {"when_full": "refuse", "min_count": 2},
    {"when_full": "evict_lfu", "min_count": 2, "expire_after": 2},
)


def big(optimizer, dtype, dim, seed=0, **settings) -> Job:
    """A job whose kernels take most of its time; its partitions fill up, keys move, then rows are evicted."""
    return job_of(optimizer, dtype, dim, capacity=20_000, steps=14, batch=4000, seed=seed, **settings)


@pytest.mark.parametrize(("optimizer", "dtype", "dim"), SOME, ids=lambda each: getattr(each, "kind", str(each)))
def test_a_shard_that_is_killed_again_and_again_ends_as_one_that_is_not(optimizer, dtype, dim):
    found: Counter[str] = Counter()
    while found["kills"] < 10:
        assert kill_by_chance(big(optimizer, dtype, dim, admission=0.95), 10, found["kills"], found) == []


@pytest.mark.parametrize(
    "policy", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3]
)
def test_nor_is_any_look_up_counted_twice_or_lost_by_kills(policy):
    found: Counter[str] = Counter()
    while found["kills"] < 10:
        job = big(SGD, "float32", 4, admission=0.95, **POLICIES[policy])
        assert kill_by_chance(job, 10, found["kills"], found) == []


@pytest.mark.slow
def test_two_thousand_kills_cause_two_hundred_repairs_of_each_kind():
    found: Counter[str] = Counter()
    rounds = 0
    while found.total() - found["kills"] - found["nothing"] < 2000 or any(found[kind] < 200 for kind in KINDS):
        assert rounds < 30, found
        for number, (optimizer, dtype, dim) in enumerate(ALL, rounds):
            policy, seed = POLICIES[number % 4], rounds * len(ALL) + number
            # In the last step keys are moved, or each new one takes the row of another.
            steps = (9, 10, 12)[number // 4 % 3]
            job = replace(big(optimizer, dtype, dim, seed, admission=0.8, **policy), steps=steps)
            assert kill_in_last_step(job, 40, seed, found) == [], (optimizer, dtype, dim, seed)
        rounds += 1
        print(found, flush=True)


def may_trace() -> bool:
    """Return True if this process may trace its child, instruction by instruction."""
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).ptrace(0, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    status = os.waitpid(child, os.WUNTRACED)[1]
    allowed = os.WIFSTOPPED(status) and ctypes.CDLL(None).ptrace(9, child, None, None) == 0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return allowed


traced = pytest.mark.skipif(not may_trace(), reason="this system does not allow to trace a process")


def filled(job: Job) -> int:
    """A file in which all steps but the last are done."""
    file = job.create()
    job.go_on(job.attach(file)[0], until=job.steps - 1)
    return file


def count_states(job: Job, methods: list[str]) -> int:
    """Repair the job's file in its state after each instruction; returns the number of states.

    Raises AssertionError for the first that does not end like an undisturbed shard.
    """
    straight, file, seen = job.straight(), filled(job), 0
    try:
        for copy in each_state(job, file, methods):
            seen += 1
            try:
                shard, _ = job.attach(copy)
            except MemoryFileError as error:
                raise AssertionError(seen) from error
            job.go_on(shard)
            assert differences(shard, straight) == [], seen
    finally:
        os.close(file)
    return seen


def small(optimizer=ADAGRAD, dtype="float32", dim=17, batch=20, **settings) -> Job:
    """A job whose last step evicts rows, moves keys, and has refused gradients and keys without a row."""
    return job_of(optimizer, dtype, dim, capacity=16, steps=4, batch=batch, admission=0.9, **settings)


@traced
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("job", "method", "least"),
    [
        (small(), "_change", 150),
        (small(), "_find_or_create", 400),
        *((small(SGD, dim=1, **policy), "_find_or_create", 300) for policy in POLICIES[1:]),
        *((small(*each), "_change", 100) for each in ALL[::7]),
        (small(batch=6), "look_up_batch", 60),
        (small(batch=6), "update_batch", 60),
    ],
)
def test_after_each_instruction_of_a_kernel_the_shard_can_be_repaired(job, method, least):
    assert count_states(job, [method]) >= least

"""A process that is killed at any moment leaves a shard that the next one repairs, to the bit."""

import ctypes
import os
import signal
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from numba.core.caching import NullCache

from persia_cli.errors import MemoryFileError
from persia_cli.kernels import compile as compiling
from persia_cli.kernels import update
from persia_cli.kernels.compile import inlined
from persia_cli.kernels.journal import PROGRESS, UNDO, publish
from persia_cli.kernels.rows import LANES, ZERO
from persia_cli.kernels.simd import load, store
from persia_cli.store.memory.recoverable_shard import RecoverableShard
from tests.support.killed import Job, differences, job_of, kill_by_chance, kill_in_last_step
from tests.support.shards import OPTIMIZERS
from tests.support.stepped import each_state

SGD, _, ADAGRAD, ROWWISE, ADAM, FTRL, _, ROWWISE_ADAM = OPTIMIZERS
ALL = [*product((SGD, ADAGRAD, ROWWISE, ADAM, ROWWISE_ADAM, FTRL), ("float32", "bfloat16", "float16"), (1, 16, 17, 64))]
SOME = [
    (ADAGRAD, "float32", 16),
    (ADAM, "float16", 64),
    pytest.param(SGD, "bfloat16", 17, marks=pytest.mark.slow),
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
    while found["kills"] < 15:
        assert kill_by_chance(big(optimizer, dtype, dim, admission=0.95), 15, found["kills"], found) == []


@pytest.mark.parametrize("policy", [1, pytest.param(2, marks=pytest.mark.slow), 3], ids=str)
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
@pytest.mark.parametrize(
    ("method", "batch", "least"),
    [
        ("_change", 4, 15),
        pytest.param("_change", 20, 150, marks=pytest.mark.slow),
        pytest.param("_find_or_add", 20, 400, marks=pytest.mark.slow),
    ],
)
def test_after_each_instruction_of_a_kernel_the_shard_can_be_repaired(method, batch, least):
    assert count_states(small(batch=batch), [method]) >= least


@traced
@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES[1:])
def test_so_it_can_where_look_ups_are_counted(policy):
    assert count_states(small(SGD, dim=1, **policy), ["_find_or_add"]) >= 300


@traced
@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "dtype", "dim"), ALL[::7], ids=lambda each: getattr(each, "kind", str(each)))
def test_so_it_can_for_other_optimizers_and_rows(optimizer, dtype, dim):
    assert count_states(small(optimizer, dtype, dim), ["_change"]) >= 100


@traced
@pytest.mark.slow
@pytest.mark.parametrize("method", ["answer_all", "update_all"])
def test_so_it_can_around_the_kernels(method):
    assert count_states(small(batch=6), [method]) >= 60


@traced
@pytest.mark.slow
def test_without_writing_the_old_row_back_a_row_is_wrong(monkeypatch):
    monkeypatch.setattr(RecoverableShard, "_write_row_back", lambda *_: None)
    with pytest.raises(AssertionError):
        count_states(small(batch=6), ["_change"])


@traced
@pytest.mark.slow
def test_without_doing_the_note_again_the_index_is_wrong(monkeypatch):
    monkeypatch.setattr(RecoverableShard, "_carry_out_note", lambda *_: None)
    with pytest.raises(AssertionError):
        count_states(small(), ["_find_or_add"])


def _note_row_too_late(journal, rows, at, position):
    """Do what `journal.note_row` does, in the wrong order."""
    journal.words[UNDO + (position & 1)] = at
    publish(journal.words, PROGRESS, journal.group | position)
    to = (position & 1) * (journal.rows.size >> 1)
    for word in range(ZERO, rows.width, LANES):
        store(journal.rows, to + word, load(rows.arena, at + word, rows.width - word), rows.width - word)


@traced
@pytest.mark.slow
def test_publishing_progress_before_the_old_row_leaves_a_wrong_row(monkeypatch):
    monkeypatch.setattr(compiling, "KernelCache", lambda *_: NullCache())
    monkeypatch.setattr(compiling, "KERNELS", [])
    monkeypatch.setattr(update, "note_row", inlined(_note_row_too_late))
    _, journaled = update._updater("adagrad", update.CHANGES["adagrad"])
    monkeypatch.setitem(update.JOURNALED_UPDATES, "adagrad", journaled)
    with pytest.raises(AssertionError):
        count_states(small(), ["_change"])

"""A shard in a memory file: it equals a shard in private memory, and a recovering process checks or repairs it."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from persia_cli.errors import MemoryFileError, PoisonError, WireError
from persia_cli.store.layout import RowOptimizer
from persia_cli.store.memory_file import LOADING, new_file
from persia_cli.store.recovery import attach, create
from persia_cli.store.requests import LOOK_UP, AppliedSteps, BatchRequest
from persia_cli.store.shard import Shard
from tests.support.killed import differences, job_of, windows_of
from tests.support.shards import OPTIMIZERS, arrays, layout_of

ADAGRAD = OPTIMIZERS[2]


@pytest.fixture
def job():
    return job_of(ADAGRAD, capacity=200, steps=6, batch=80)


@pytest.mark.parametrize("group", [0, 1])
def test_a_look_up_that_was_cut_off_is_answered_as_if_it_were_not(job, group):
    """The request continues when it is repeated."""
    file = job.create()

    def at_group(shard: Shard) -> None:
        real = shard._mark_group_done
        shard._mark_group_done = lambda number: end_by_signal() if number == group else real(number)

    die(job, file, at_group)
    shard, repairs = job.attach(file)
    plain = Shard(job.layout, 0, 1)
    theirs = plain.look_up_batch(job.look_up(0), 0, 0, 0)
    assert repairs.request == shard.pending == BatchRequest(LOOK_UP, 0, (0,))
    assert not shard.applied.is_looked_up(0, 0)
    ours = shard.look_up_batch(job.look_up(0), 0, 0, 0)
    assert shard.pending is None
    assert last_new_keys(shard) == (0, as_lists(theirs)) == (0, as_lists(ours))
    assert shard.applied.is_looked_up(0, 0)
    assert [rows.tolist() for rows, _ in ours] == [rows.tolist() for rows, _ in theirs]
    assert shard.counters() == plain.counters()


def test_a_request_that_comes_again_with_other_keys_is_refused(job):
    file = job.create()

    def in_kernel(shard: Shard) -> None:
        shard._change = end_by_signal

    die(job, file, in_kernel)
    shard, _ = job.attach(file)
    [(keys, tables, gradients), other] = job.update(0)
    with pytest.raises(MemoryFileError, match=r"the update of step 0 of rank 0 .* other keys"):
        shard.update_batch([(keys[1:], tables[1:], gradients[1:]), other], 0, [0])


def die(job, file: int, kill) -> None:
    """Make a process work on the job's file until `kill`, which gets the shard, ends it."""
    child = os.fork()
    if child == 0:
        shard, _ = job.attach(file)
        kill(shard)
        job.go_on(shard)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def end_by_signal(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at_the_end(name: str, request: int):
    """Make a process end before or after it marks a request as finished."""

    def prepare(shard: Shard) -> None:
        real, seen = shard.record.end, []

        def end() -> None:
            seen.append(0)
            if name == "after":
                real()
            if len(seen) == request:
                end_by_signal()
            if name == "before":
                real()

        shard.record.end = end

    return prepare


@pytest.mark.parametrize("request_number", [1, 2, 7, 8])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_request_that_is_done_and_not_yet_over_is_not_done_again(job, moment, request_number):
    file = job.create()
    die(job, file, dies_at_the_end(moment, request_number))
    shard, repairs = job.attach(file)
    assert (repairs.request is not None) == (moment == "before")
    assert shard.pending is None
    assert shard.updates == request_number // 2
    job.go_on(shard)
    assert differences(shard, job.straight()) == []
    assert shard.updates == job.steps


def as_lists(answers) -> list[list[list[int]]]:
    """The new keys of each group, and those of them that got no row."""
    return [[new.positions.tolist(), new.rowless.tolist()] for _, new in answers]


def last_new_keys(shard: Shard):
    """The step of rank 0's last look-up, if it waits for its update, and its new keys as `as_lists` has them."""
    last = shard.answers.last(0)
    if last is None or not shard.applied.is_looked_up(0, last[0]):
        return None
    return last[0], as_lists((None, new) for new in last[1])


def test_a_request_that_kills_twice_is_named(job):
    file = job.create()

    def in_kernel(shard: Shard) -> None:
        shard._change = end_by_signal

    die(job, file, in_kernel)
    job.attach(file)  # a process that ends before the request is repeated has not died at it
    gc.collect()
    die(job, file, in_kernel)
    with pytest.raises(PoisonError, match="2 processes have died at the same request, the update of step 0 of rank 0:"):
        attach(file, job.layout, 0, 1, 1, max_deaths=1)
    shard, _ = job.attach(file)
    job.go_on(shard, 2)
    del shard
    gc.collect()
    attach(file, job.layout, 0, 1, 1, max_deaths=0)


# Permissions to recover a file


def refused(file: int, layout, **changed) -> str:
    with pytest.raises(MemoryFileError) as error:
        attach(file, layout, **{"server": 0, "servers": 1, "ranks": 1, **changed})
    return str(error.value)


def test_a_file_of_another_kind_or_not_loaded_is_refused(job):
    assert "no memory of an earlier process" in refused(new_file("new"), job.layout)
    file = job.create()
    other = layout_of(optimizer=RowOptimizer("sgd", lr=0.1))
    assert "another layout" in refused(file, other)
    assert "another layout" in refused(file, job.layout, servers=2)
    assert "another layout" in refused(file, job.layout, ranks=2)
    shard, _ = job.attach(file)
    shard.memory.state = LOADING
    del shard
    gc.collect()
    message = refused(file, job.layout)
    assert "before its memory was whole" in message
    assert "from a checkpoint" in message


def test_a_file_of_other_kernels_is_refused(job, monkeypatch):
    file = job.create()
    monkeypatch.setattr("persia_cli.store.memory_file.cache_folder", lambda: Path("kernels-other"))
    assert "another version" in refused(file, job.layout)


HOLDER = """
import fcntl, os, sys, time
own = os.open(f"/proc/self/fd/{sys.argv[1]}", os.O_RDWR)
fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
time.sleep(600)
"""


def test_a_second_writer_is_refused_while_the_first_is_only_stopped(job):
    file = job.create()
    command = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(command, pass_fds=[file], stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "locked\n"
            first.send_signal(signal.SIGSTOP)
            assert "another process" in refused(file, job.layout)
        finally:
            first.kill()
    assert job.attach(file)[1].request is None


# Memory


def test_address_space_is_reserved_and_memory_is_taken_as_rows_come():
    file = new_file("sparse")
    layout = layout_of(dim=64, capacity=10_000_000, partitions=1024, optimizer=RowOptimizer("adam", lr=0.1))
    shard = create(file, layout, 0, 1, 1)
    assert os.fstat(file).st_size > 7 << 30
    assert os.fstat(file).st_blocks * 512 < 16 << 20
    keys = np.random.default_rng(0).integers(2**64, size=10_000, dtype=np.uint64)
    shard.look_up(0, keys, np.zeros(keys.size, np.uint16), 0, create=True)
    # Each new row is in a separate page of the index.
    assert shard.stores[0].index.buckets.nbytes > 150 << 20
    assert os.fstat(file).st_blocks * 512 < 10_000 * (layout.groups[0].width * 4 + 4096) + (48 << 20)


# The windows


def test_windows_of_applied_steps_hold_after_each_store():
    """Steps come in any order, and the memory is copied after every change: no step is lost, none comes back twice."""

    class Noted(np.ndarray):
        """An array whose stores are noted."""

        def __setitem__(self, at, value):
            super().__setitem__(at, value)
            noted.append([np.array(each, copy=True) for each in parts])

    parts: list[np.ndarray] = []
    noted: list[list[np.ndarray]] = []

    def array(size, dtype):
        parts.append(np.zeros(size, dtype).view(Noted))
        return parts[-1]

    steps = AppliedSteps(array, 1)
    steps.begin(9)
    done: set[int] = set()
    rng = np.random.default_rng(0)
    for step in [11, 10, 13, 14, 12, *(15 + rng.permutation(200)).tolist()]:
        noted.clear()
        steps.mark(0, step)
        for state in noted:
            copies = iter(state)
            copy = AppliedSteps(lambda size, dtype, copies=copies: np.array(next(copies)), 1)
            copy.repair()
            copy.mark(0, step)
            watermark, above = windows_of(copy)[0]
            assert set(range(10, watermark + 1)) | above == done | {step}
        done.add(step)
    assert windows_of(steps) == [(214, set())]


def test_an_insertion_from_a_checkpoint_is_incomplete_until_marked(job):
    file = job.create()
    shard, _ = job.attach(file)
    names = [(7, 3)]
    values = {"embedding": np.ones((1, 16), np.float32), "adagrad_sum": np.ones((1, 16), np.float32)}
    shard.insert(1, *arrays(names), np.array([0]), values)
    del shard
    gc.collect()
    assert "before its memory was whole" in refused(file, job.layout)


def test_a_file_can_be_begun_anew(job):
    file = job.create()
    shard, _ = job.attach(file)
    job.go_on(shard)
    del shard
    gc.collect()
    assert job.create() != file
    shard = create(file, job.layout, 0, 1, 1, last_step=41)
    assert shard.stores[0].used == 0
    assert not shard.stores[0].index.buckets.any()
    assert windows_of(shard.applied) == [(41, set())]


def test_a_step_too_far_ahead_is_refused():
    steps = AppliedSteps(np.zeros, 1)
    steps.check(0, 4095)
    with pytest.raises(WireError, match="step 4096 is more than 4096 steps ahead of the last finished step -1"):
        steps.check(0, 4096)

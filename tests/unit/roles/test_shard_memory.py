"""The shard that a process of an embedding server begins with, by what the one before has left."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from persia_cli.config.schema import Run
from persia_cli.errors import MemoryFileError, RoleError
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.roles.shard_memory import REST, on_a_thread, shard_of
from persia_cli.store.kept_shard import KeptShard
from persia_cli.store.memory_file import new_file
from persia_cli.wire.message import Sender
from tests.conftest import poll_for
from tests.support.runs import make_run

FIRST, SECOND = Sender("embedding-server", 0, 1), Sender("embedding-server", 0, 2)
PLAIN = Job("train", "", None, train_rows=80, eval_rows=8, steps=10, eval_steps=1)
KEYS, TABLES = np.arange(40, dtype=np.uint64) << np.uint64(50), np.zeros(40, np.uint16)


RUN: Run = make_run(sparse=["a"], mode={"kind": "hybrid"}, cluster={"kind": "local", "nn_workers": 1})


@pytest.fixture
def file() -> Iterator[int]:
    """The memory file of a process that has ended with 40 rows."""
    number = new_file("memory")
    shard = KeptShard.create(number, embedding_layout(RUN), 0, 1, 1)
    shard.serve()
    shard.answer_all([(KEYS, TABLES)], 0, 0, None)
    del shard
    gc.collect()
    yield number
    os.close(number)


def damage(file: int) -> None:
    """Have two slots of the index name the same row."""
    shard, _ = KeptShard.attach(file, embedding_layout(RUN), 0, 1, 1)
    shard.words[:] = 0
    marks = shard.stores[0].index.marks.reshape(-1, 16)
    slots = np.argwhere(marks[:, 8:12])
    (first, at), (second, other) = slots[0], slots[1]
    marks[first, 8 + at] = marks[second, 8 + other]


def test_memory_that_is_sound_is_taken_over(file: int) -> None:
    shard, repairs = shard_of(RUN, PLAIN, SECOND, file, np.empty, threading.Event())
    assert repairs is not None
    assert repairs.rows == 40
    assert shard.stores[0].used == 40


def test_memory_that_cannot_be_trusted_is_refused(file: int) -> None:
    damage(file)
    gc.collect()
    with pytest.raises(MemoryFileError, match="is damaged"):
        shard_of(RUN, PLAIN, SECOND, file, np.empty, threading.Event())


def test_memory_that_nothing_has_kept_too() -> None:
    with pytest.raises(RoleError, match="ended with its first process"):
        shard_of(RUN, PLAIN, SECOND, None, np.empty, threading.Event())
    assert shard_of(RUN, PLAIN, FIRST, None, np.empty, threading.Event())[1] is None


def test_work_beside_look_ups_rests_for_most_of_the_time() -> None:
    """Each piece holds up who needs new memory, so that pieces must not follow each other at once."""
    times: list[tuple[float, float]] = []

    def work() -> Iterator[None]:
        for _ in range(3):
            began = time.monotonic()
            while time.monotonic() < began + 0.005:
                pass
            times.append((began, time.monotonic()))
            yield

    on_a_thread(threading.Event(), work())
    poll_for(lambda: len(times) == 3, 10, "three pieces of work")
    for (began, ended), (following, _) in pairwise(times):
        assert following - ended >= 0.9 * REST * (ended - began)


def test_it_ends_with_the_server() -> None:
    """In an embedded job the process goes on: the index of a large table would keep a thread for minutes."""
    over, done = threading.Event(), threading.Event()

    def work() -> Iterator[None]:
        began = time.monotonic()
        while time.monotonic() < began + 0.005:
            pass
        done.set()
        while True:
            yield

    before = set(threading.enumerate())
    on_a_thread(over, work())
    assert done.wait(10)
    over.set()
    poll_for(lambda: set(threading.enumerate()) <= before, 2, "the end of the thread")

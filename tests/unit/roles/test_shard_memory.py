"""The initial shard of an embedding server's process, by the state of the previous one."""

import gc
import os
from collections.abc import Iterator

import numpy as np
import pytest

from persia_cli.config.schema import Run
from persia_cli.errors import MemoryFileError, RoleError
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.roles.embedding_server.rows import shard_of
from persia_cli.store.memory.memory_file import new_file
from persia_cli.store.memory.recoverable_shard import RecoverableShard
from persia_cli.wire.message import Sender
from tests.support.runs import make_run

FIRST, SECOND = Sender("embedding-server", 0, 1), Sender("embedding-server", 0, 2)
PLAIN = Job("train", "", None, train_rows=80, eval_rows=8, steps=10, eval_steps=1)
KEYS, TABLES = np.arange(40, dtype=np.uint64) << np.uint64(50), np.zeros(40, np.uint16)


RUN: Run = make_run(sparse=["a"], mode={"kind": "hybrid"}, cluster={"kind": "local", "nn_workers": 1})


@pytest.fixture
def file() -> Iterator[int]:
    """The memory file of a process that has ended with 40 rows."""
    number = new_file("memory")
    shard = RecoverableShard.create(number, embedding_layout(RUN), 0, 1, 1)
    shard.serve()
    shard.answer_all([(KEYS, TABLES)], 0, 0, None)
    del shard
    gc.collect()
    yield number
    os.close(number)


def damage(file: int) -> None:
    """Make two slots of the index name the same row."""
    shard, _ = RecoverableShard.attach(file, embedding_layout(RUN), 0, 1, 1)
    shard.words[:] = 0
    marks = shard.stores[0].index.marks.reshape(-1, 16)
    slots = np.argwhere(marks[:, 8:12])
    (first, at), (second, other) = slots[0], slots[1]
    marks[first, 8 + at] = marks[second, 8 + other]


def test_memory_that_is_sound_is_taken_over(file: int) -> None:
    shard, repairs = shard_of(RUN, PLAIN, SECOND, file, np.empty)
    assert repairs is not None
    assert repairs.rows == 40
    assert shard.stores[0].used == 40


def test_memory_that_cannot_be_trusted_is_refused(file: int) -> None:
    damage(file)
    gc.collect()
    with pytest.raises(MemoryFileError, match="is damaged"):
        shard_of(RUN, PLAIN, SECOND, file, np.empty)


def test_memory_that_was_not_retained_is_refused_too() -> None:
    with pytest.raises(RoleError, match="ended with its first process"):
        shard_of(RUN, PLAIN, SECOND, None, np.empty)
    assert shard_of(RUN, PLAIN, FIRST, None, np.empty)[1] is None

"""A process that recovers a memory file also has the changes since a checkpoint."""

import gc
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from persia_cli.store.checkpoints.changes import note_loaded, take_changes
from persia_cli.store.checkpoints.manifest import DELETED
from persia_cli.store.memory.recoverable_shard import RecoverableShard
from persia_cli.store.row_store import RowStore
from persia_cli.store.shard import Shard
from tests.support.killed import Job, job_of, killed_in
from tests.support.saving import save_shard
from tests.support.shards import OPTIMIZERS

BASE, END = 4, 9
CAPACITY = 400
"""Rows of each group: so many that some are evicted between the checkpoints, and not more than a store remembers."""


def job_with_evictions() -> Job:
    job = job_of(OPTIMIZERS[2], capacity=CAPACITY, steps=END, batch=80)
    groups = tuple(replace(group, remembers_evictions=True) for group in job.layout.groups)
    return replace(job, layout=replace(job.layout, groups=groups))


def save(shard: Shard, folder: Path, step: int, parent: int | None) -> dict[str, bytes]:
    """The bytes of the files of a checkpoint, those of deleted ids included."""
    changes = take_changes(shard, step, parent)
    files = save_shard(shard, folder / "embeddings", changes=changes)
    assert {file.rows.changed_since for file in files if file.rows} == {parent}
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in folder.glob("*/*")}


def undisturbed(job: Job, folder: Path) -> dict[str, bytes]:
    """The changes of a shard in private memory that lives through both checkpoints."""
    shard = Shard(job.layout, 0, 1)
    for step in range(END):
        if step == BASE:
            take_changes(shard, BASE, None)
        for number, group in enumerate(job.look_up(step)):
            shard.look_up(number, *group, step, True, step)
        for number, part in enumerate(job.update(step)):
            shard.update(number, *part, step, step)
    save_shard(shard, folder / "embeddings", changes=take_changes(shard, END, BASE))
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in folder.glob("*/*")}


def in_child(work) -> int:
    """Run this in a separate process; returns how it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_changes_are_those_of_a_shard_that_nothing_happens_to(tmp_path: Path, seed: int) -> None:
    job, rng = job_with_evictions(), random.Random(seed)
    expected = undisturbed(job, tmp_path / "undisturbed")
    file = job.create()

    def until_base() -> None:
        shard, _ = job.attach(file)
        job.go_on(shard, BASE)
        save(shard, tmp_path / "base", BASE, None)

    assert in_child(until_base) == 0
    deaths = 0
    while deaths < 5:

        def on() -> None:
            names = rng.choice((["_change"], ["_find_or_add"]))
            with killed_in(names, rng.randrange(3), rng.random(), dict.fromkeys(names, 1e-5)):
                job.go_on(job.attach(file)[0])

        assert in_child(on) in (0, -signal.SIGKILL)
        deaths += 1
        rng.random()
    shard, _ = job.attach(file)
    job.go_on(shard)
    found = save(shard, tmp_path / "changes", END, BASE)
    assert any(name.startswith(DELETED) for name in found)
    assert found == expected
    os.close(file)


@pytest.mark.parametrize("group", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_death_during_the_start_of_a_checkpoint_leaves_no_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    job, taken = job_with_evictions(), RowStore.take_evicted
    file = job.create()
    shard, _ = job.attach(file)
    job.go_on(shard, BASE)
    take_changes(shard, BASE, None)
    job.go_on(shard)
    del shard
    gc.collect()

    def die(store: RowStore):
        if store.group.number == group:
            os.kill(os.getpid(), signal.SIGKILL)
        return taken(store)

    def cut() -> None:
        monkeypatch.setattr(RowStore, "take_evicted", die)
        take_changes(job.attach(file)[0], END, BASE)

    assert in_child(cut) == -signal.SIGKILL
    shard, _ = job.attach(file)
    assert take_changes(shard, END, BASE) == [None, None]
    assert None not in take_changes(shard, END + 1, END)
    os.close(file)


def test_rows_that_are_loaded_have_changes_from_there_on(tmp_path: Path) -> None:
    job = job_with_evictions()
    file = job.create()
    shard = RecoverableShard.create(file, job.layout, 0, 1, 1)
    note_loaded(shard, 7, had_cold=False)
    shard.serve()
    del shard
    gc.collect()
    shard, _ = job.attach(file)
    assert None not in take_changes(shard, 9, 7)
    os.close(file)

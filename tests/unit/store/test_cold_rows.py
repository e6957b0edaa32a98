"""Rows that leave memory for a disk come back as they were, whatever happens in between."""

import gc
import os
import random
import shutil
import signal
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types

from persia_cli.errors import ConfigError, DiskError, MemoryFileError
from persia_cli.kernels.rows.rows import RowArena
from persia_cli.kernels.table import cold
from persia_cli.kernels.toolchain.compile import kernel
from persia_cli.store.cold.cold_rows import ColdRows, ColdStorage
from persia_cli.store.recovery import check_store
from persia_cli.store.shard import Shard
from tests.support.cold import ColdJob, other_rows
from tests.support.full_disk import leave_free, small_disk
from tests.support.killed import copy_of, durations_of, is_killed, job_of
from tests.support.shards import BY_KIND, SGD, TABLES, layout_of

METHODS = ("_change", "_find_or_create", "_bring_back")
PLANS = (
    ("adagrad", "float32", 16, {"when_full": "evict_lfu"}, 1 << 22),
    ("adam", "bfloat16", 17, {"when_full": "evict_lru", "expire_after": 3}, 1 << 20),
    ("sgd", "float32", 300, {"when_full": "evict_lfu"}, 1 << 23),
    ("rowwise_adagrad", "int8", 18, {"when_full": "evict_lru"}, 1 << 19),
)


def job_with_log(
    tmp_path, kind="adagrad", dtype="float32", dim=16, policy=None, cold_bytes=1 << 22, **given
) -> ColdJob:
    policy = dict(policy or {"when_full": "evict_lru"})
    memory = policy.pop("memory", 1200)
    given = {"capacity": 20_000, "steps": 12, "batch": 400, "admission": 0.95, **given}
    job = job_of(BY_KIND[kind], dtype, dim, **given, **policy)
    return ColdJob(job.layout, job.steps, job.batch, job.seed, tmp_path / "log", memory, cold_bytes)


def trained(job: ColdJob):
    shard = job.small_shard()
    for step in range(job.steps):
        shard.look_up_batch(job.look_up(step), step, 0, step)
        shard.update_batch(job.update(step), step, [0], step)
    return shard


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[0])
def test_all_rows_are_those_of_a_shard_with_enough_memory(tmp_path, plan):
    kind, dtype, dim, policy, cold_bytes = plan
    job = job_with_log(tmp_path, kind, dtype, dim, policy, cold_bytes)
    shard, straight = trained(job), job.straight()
    assert min(store.cold.rows for store in shard.stores) > 50
    assert other_rows(shard, straight) == []
    for number, store in enumerate(shard.stores):
        before = store.cold.rows
        keys, tables, _ = job.part(3, number)
        assert (shard.values(number, keys, tables) == straight.values(number, keys, tables)).all()
        assert store.cold.rows == before  # reading brings nothing back
    shard.close()
    assert list(job.folder.rglob("segment*")) == []


def test_a_shard_killed_again_and_again_loses_and_doubles_no_row(tmp_path):
    kill_repeatedly(tmp_path, PLANS[:1], 12)


@pytest.mark.slow
def test_three_hundred_kills_lose_and_double_no_row(tmp_path):
    kill_repeatedly(tmp_path, PLANS, 300)


def kill_repeatedly(tmp_path, plans, kills):
    found: Counter[str] = Counter()
    for round_ in range(kills):
        if found["kills"] >= kills:
            return
        kind, dtype, dim, policy, cold_bytes = plans[round_ % len(plans)]
        job = job_with_log(tmp_path, kind, dtype, dim, policy, cold_bytes, seed=round_)
        straight, rng = job.straight(), random.Random(round_)
        durations = durations_of(job, job.create(), METHODS)
        file = job.create()
        for _ in range(10):
            if not is_killed(job, file, durations, rng, found, METHODS):
                break
        shard, _ = job.attach(file)
        job.go_on(shard)
        assert other_rows(shard, straight) == [], (round_, found)
        del shard
        gc.collect()
        os.close(file)
    assert found["kills"] >= kills, found


@pytest.mark.parametrize("names", [["_open_next"], pytest.param(["_write", "_open_next"], marks=pytest.mark.slow)])
def test_a_kill_at_any_line_of_writing_and_sealing_loses_no_row(tmp_path, names):
    job = job_with_log(tmp_path, steps=6, cold_bytes=1 << 20)
    straight, begun, files = job.straight(), job.create(), tmp_path / "files"
    job.go_on(job.attach(begun)[0])
    gc.collect()
    shutil.copytree(job.folder, files)
    for line in range(1, 200):
        file = copy_of(begun)
        shutil.rmtree(job.folder)
        shutil.copytree(files, job.folder)
        is_over = not is_killed_at_line(job, file, names, line)
        shard, _ = job.attach(file)
        assert other_rows(shard, straight) == [], line
        del shard
        gc.collect()
        os.close(file)
        if is_over:
            break
    assert is_over
    assert line > 5
    os.close(begun)


def is_killed_at_line(job: ColdJob, file: int, names: list[str], line: int) -> bool:
    """Let a child seal a log, and kill itself before a line of the methods of these names."""
    left = [line]

    def trace(frame, event, argument):
        if event == "line":
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    child = os.fork()
    if child == 0:
        code = 1
        try:
            shard, _ = job.attach(file)
            sys.settrace(lambda frame, *_: trace if frame.f_code.co_name in names else None)
            shard.stores[0].cold.cut()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), "the child failed: see its traceback above"
    return code != 0


@pytest.mark.parametrize("seed", [6, 13, 31])
def test_an_index_stays_sound_while_batches_use_nearly_all_rows_of_memory(tmp_path, seed):
    rng = np.random.default_rng(seed)
    layout = layout_of(1, 400, 1, SGD, TABLES[:1], when_full="evict_lru")
    layout = replace(layout, groups=(replace(layout.groups[0], cold_bytes=1 << 19),))
    shard = Shard(layout, 0, 1, cold_storage=ColdStorage(tmp_path))
    shard.begin_cold()
    store, known = shard.stores[0], rng.integers(2**64, size=800, dtype=np.uint64)
    for step in range(1, 25):
        keys = rng.permutation(known)[: rng.integers(360, 398)]
        with suppress(ConfigError):  # the last rows in use may be in no place that the key may have
            shard.look_up(0, keys, np.zeros(keys.size, np.uint16), step, create=True)
        rows = shard.counters()[TABLES[0].name].rows
        check_store(store, np.array([rows]))
    shard.close()


def test_batches_that_use_most_rows_of_memory_never_run_out_of_slots(tmp_path):
    """Nor after many steps: buckets that were full at some time lose rows again."""
    rng = np.random.default_rng(0)
    layout = layout_of(1, 2048, 1, SGD, TABLES[:1], when_full="evict_lru")
    layout = replace(layout, groups=(replace(layout.groups[0], cold_bytes=1 << 22),))
    shard = Shard(layout, 0, 1, cold_storage=ColdStorage(tmp_path))
    shard.begin_cold()
    known = rng.integers(2**64, size=8192, dtype=np.uint64)
    for step in range(1, 41):
        keys = rng.choice(known, 1024 if step % 4 else 1843, replace=False)
        shard.look_up(0, keys, np.zeros(keys.size, np.uint16), step, create=True)
        check_store(shard.stores[0], np.array([shard.counters()[TABLES[0].name].rows]))
    shard.close()


def test_rows_that_are_loaded_twice_are_counted_wherever_they_are(tmp_path):
    shard = job_with_log(tmp_path).small_shard()
    store, keys = shard.stores[0], np.random.default_rng(0).integers(2**64, size=3000, dtype=np.uint64)
    for loaded, repeated in ((np.concatenate([keys, keys[-9:]]), 9), (keys, keys.size)):
        parts = {name: np.zeros((loaded.size, columns), np.float32) for name, columns in store.group.vectors.items()}
        tables, last_used = np.zeros(loaded.size, np.uint16), np.zeros(loaded.size, np.int64)
        assert shard.insert(0, loaded, tables, last_used, parts) == repeated
        assert store.row_count == keys.size > store.used + 1000
    assert shard.counters()[store.group.tables[0].name].left_out == 0
    shard.close()


def test_a_log_that_is_full_drops_no_row_at_a_checkpoint(tmp_path):
    job = job_with_log(tmp_path)
    log = job.small_shard().stores[0].cold
    group = job.small.groups[0]
    first = 0
    for count in (log.size.rows - 1, 1):
        keys, ones = np.arange(first, first + count, dtype=np.uint64), np.ones(count, np.uint32)
        words = RowArena(
            np.zeros(count * group.width, np.float32), np.uint64(group.width), *([np.uint64(0)] * 2), 0, np.empty(0)
        )
        log.append(keys, np.zeros(count, np.uint16), ones, ones, words)
        log.cut()
        first += count
    assert log.rows == log.size.rows
    assert not log.dropped.any()
    log.close()


def test_a_block_that_is_damaged_or_missing_is_named(tmp_path):
    shard = trained(job_with_log(tmp_path))
    log = shard.stores[0].cold
    log.flush()
    path = log._segments[0].path
    with path.open("r+b") as file:
        file.seek(300)
        file.write(b"\xff\xfe\xfd")
    with pytest.raises(DiskError, match=str(path)):
        read_all(log)
    os.truncate(path, 4096)
    with pytest.raises(DiskError, match=str(path)):
        read_all(log)
    shard.close()


@kernel(types.void(cold.COLD, types.uint64, types.uint64))
def add(log, key, record):
    cold._add(log, key, record)


@kernel(types.void(cold.COLD, types.uint64, types.uint64))
def remove(log, key, record):
    cold.remove_from_index(log, key, record)


def index_alone(slots: int) -> cold.ColdLog:
    return cold.no_log()._replace(
        buffer_first=np.zeros(1, np.int64),
        buffer_space=np.zeros(1, np.int64),
        keys=np.zeros(slots, np.uint64),
        records=np.zeros(slots, np.uint32),
        live=np.zeros(1, np.uint64),
        of_segment=np.zeros(9, np.int64),
        per_segment=np.uint64(5),
    )


def read_all(log: ColdRows) -> None:
    keys = log.log.keys[log.log.records > 0]
    log.find(keys, np.zeros(keys.size, np.uint16))


@pytest.mark.parametrize("missing", ["segment*", "segment-0"])
def test_a_process_without_the_files_of_the_one_before_does_not_begin(tmp_path, missing):
    job = job_with_log(tmp_path, cold_bytes=1 << 20)
    file = job.create()
    shard, _ = job.attach(file)
    job.go_on(shard)
    del shard
    gc.collect()
    for path in job.folder.rglob(missing):
        path.unlink()
    with pytest.raises(MemoryFileError, match="group-0"):
        job.attach(file)
    os.close(file)


def test_memory_below_a_batch_is_refused_by_name(tmp_path):
    job = replace(job_with_log(tmp_path), memory=100)
    with pytest.raises(ConfigError, match=r"embedding\.memory"):
        trained(job)


def test_rows_beyond_the_space_on_the_disk_are_dropped_oldest_first_and_counted(tmp_path):
    job = job_with_log(tmp_path, cold_bytes=1 << 18, steps=40)
    shard = trained(job)
    for store in shard.stores:
        dropped = int(store.cold.dropped.sum())
        assert dropped > 0
        ever = sum(shard.counters()[table.name].admitted for table in store.group.tables)
        assert ever == store.used + store.cold.rows + dropped
        assert sum(path.stat().st_size for path in store.cold._folder.iterdir()) <= store.cold.size.nbytes * 1.01
    shard.close()


@pytest.mark.parametrize("linked", [False, True])
def test_rows_without_space_on_a_full_disk_are_dropped_and_counted(linked):
    """Segments that checkpoints have too free no space when they go: then the rows that leave memory are dropped."""
    with small_disk(2**21) as disk:
        job = job_with_log(disk, steps=60)
        shard, filler = job.small_shard(), disk / "filler"
        for step in range(job.steps):
            if step == 20:
                for number, path in enumerate((disk / "log").rglob("segment-*") if linked else ()):
                    os.link(path, disk / str(number))
                leave_free(disk, 0)
            elif step == 40:
                assert sum(int(store.cold.dropped.sum()) for store in shard.stores) > 0
                filler.unlink()
            shard.look_up_batch(job.look_up(step), step, 0, step)
            shard.update_batch(job.update(step), step, [0], step)
        for store in shard.stores:
            ever = sum(shard.counters()[table.name].admitted for table in store.group.tables)
            assert ever == store.used + store.cold.rows + int(store.cold.dropped.sum())
        shard.close()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(3, 60),
    st.lists(st.tuples(st.booleans(), st.integers(0, 11), st.integers(0, 40)), max_size=120),
    st.integers(0, 2**32 - 1),
)
def test_the_index_is_a_table_of_several_records_for_a_key(slots, changes, seed):
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 4, 12).astype(np.uint64) << np.uint64(30)  # many have the same first slot
    log = index_alone(slots)
    twin: set[tuple[int, int]] = set()
    for adds, key, record in changes:
        entry = (int(keys[key]), record)
        if adds and len(twin) < slots - 1 and all(record != each for _, each in twin):
            add(log, *entry)
            twin.add(entry)
        elif entry in twin:
            remove(log, *entry)
            twin.discard(entry)
        places, records = np.empty(200, np.int64), np.empty(200, np.int64)
        count = cold.find_records(log, np.unique(keys), places, records)
        found = zip(np.unique(keys)[places[:count]].tolist(), records[:count].tolist(), strict=True)
        assert sorted(found) == sorted(twin)
        assert log.of_segment.sum() == len(twin) == sum(int(word).bit_count() for word in log.live)

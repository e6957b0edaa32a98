"""Shards in memory files whose process is killed at random, and continued."""

import ctypes
import errno
import gc
import os
import random
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from persia_cli.kernels.table import journal
from persia_cli.kernels.toolchain.needs import SERVER, TAKE_OVER
from persia_cli.kernels.toolchain.warm import warm
from persia_cli.store.layout import EmbeddingLayout, GroupSpec
from persia_cli.store.memory_file import HEADER, new_file
from persia_cli.store.recovery import Repairs, attach, create
from persia_cli.store.requests import SPAN, AppliedSteps
from persia_cli.store.shard import Shard
from tests.support.shards import TABLES, layout_of

# What the modules have made lives until the end, and looking through all of it takes longer than most tests.
gc.collect()
gc.freeze()


@cache
def _part(seed: int, batch: int, group: GroupSpec, step: int):
    rng = np.random.default_rng([seed, step, group.number])
    # Half of the keys are from a small set of repeated keys.
    often = np.random.default_rng(group.number).integers(2**64, size=batch, dtype=np.uint64)
    fresh = rng.integers(2**64, size=batch // 2, dtype=np.uint64)
    keys = rng.permutation(np.unique(np.concatenate([rng.choice(often, batch // 2), fresh])))
    tables = np.array([group.tables[int(key % len(group.tables))].number for key in keys], np.uint16)
    gradients = rng.standard_normal((keys.size, group.dim)).astype(np.float32)
    gradients[rng.random(keys.size) < 0.05] = np.inf
    return keys, tables, gradients


@dataclass(frozen=True, eq=False)
class Job:
    """Look-ups and updates that are a pure function of the seed: in each step one of each, of two groups."""

    layout: EmbeddingLayout
    steps: int
    batch: int
    seed: int = 0

    def part(self, step: int, group: int):
        """Keys, tables and gradients of a step; some keys have no row, some gradients are refused."""
        return _part(self.seed, self.batch, self.layout.groups[group], step)

    def look_up(self, step: int):
        return [self.part(step, number)[:2] for number in range(len(self.layout.groups))]

    def update(self, step: int):
        """Update the look-up's keys and, sometimes, one without a row."""
        parts = []
        for group in self.layout.groups:
            keys, tables, gradients = self.part(step, group.number)
            keys = keys.copy()
            keys[-1] = step * 7919 + group.number
            parts += [(keys, tables, gradients)]
        return parts

    def straight(self) -> Shard:
        """Return the shard of an undisturbed process, in its own memory."""
        shard = Shard(self.layout, 0, 1)
        for step in range(self.steps):
            for number, group in enumerate(self.look_up(step)):
                shard.look_up(number, *group, step, True, step)
            for number, part in enumerate(self.update(step)):
                shard.update(number, *part, step, step)
        return shard

    def create(self) -> int:
        """A new file with an empty shard."""
        file = new_file("killed")
        create(file, self.layout, 0, 1, 1).serve()
        gc.collect()
        return file

    def attach(self, file: int) -> tuple[Shard, Repairs]:
        return attach(file, self.layout, 0, 1, 1)

    def go_on(self, shard: Shard, until: int | None = None) -> None:
        """Do the remaining steps, by the state of the file; until before a step."""
        while (step := shard.applied.watermark(0) + 1) < (self.steps if until is None else until):
            if not shard.applied.is_looked_up(0, step):
                shard.look_up_batch(self.look_up(step), step, 0, step)
            shard.update_batch(self.update(step), step, [0], step)


def windows_of(applied: AppliedSteps) -> list[tuple[int, set[int]]]:
    """Each rank's watermark and the applied steps above it."""
    steps = [np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")) for bits in applied._applied]
    firsts = map(applied.watermark, range(len(steps)))
    return [
        (first, {first + 1 + (step - first - 1) % SPAN for step in above.tolist()})
        for first, above in zip(firsts, steps, strict=True)
    ]


def job_of(
    optimizer, dtype="float32", dim=16, capacity=300, steps=10, batch=120, admission=1.0, seed=0, **settings
) -> Job:
    """A job of two groups, of which the first has two tables and the second one partition."""
    layout = layout_of(dim, capacity, 2, optimizer, TABLES[:2], admission, dtype, seed=seed, **settings)
    own = replace(TABLES[2], admission=admission, min_count=layout.groups[0].tables[0].min_count)
    second = replace(layout.groups[0], number=1, tables=(own,), partitions=1)
    return Job(replace(layout, groups=(layout.groups[0], second)), steps, batch, seed)


STATE_OF_INDEX = (
    "buckets", "tables", "reused", "fill", "uses", "sketch",
)  # fmt: skip


def differences(one: Shard, other: Shard) -> list[str]:
    """The arrays and counts in which two shards differ, to the bit."""
    found = []
    for mine, theirs in zip(one.stores, other.stores, strict=True):
        for name in STATE_OF_INDEX:
            if not np.array_equal(getattr(mine.index, name), getattr(theirs.index, name)):
                found += [f"{name} of group {mine.group.number}"]
        words, width = [each.rows.arena.view(np.uint32) for each in (mine, theirs)], mine.group.width
        if changed := int((words[0] != words[1]).reshape(-1, width).any(1).sum()):
            found.append(f"{changed} rows of group {mine.group.number}")
        if mine.used != theirs.used:
            found.append(f"{mine.used} and {theirs.used} rows")
    if one.counters() != other.counters():
        found.append("counters")
    return found


def under_way(file: int) -> str:
    """Return the logged work of a killed process: a row, an insertion, an eviction, moves, a key without a row."""
    words = np.frombuffer(os.pread(file, 64 + 16 * int(journal.ENTRY_WORDS), HEADER), np.uint64)
    progress = int(words[0])
    if progress & int(journal.IDLE):
        return "nothing"
    if not progress & int(journal.ADDING):
        return "row"
    entry = words[8 + (progress & 1) * int(journal.ENTRY_WORDS) :]
    if entry[int(journal.ENTRY.writes)] == 0:
        return "no row"
    if entry[int(journal.ENTRY.writes)] > 1:
        return "move"
    return "insert" if entry[int(journal.ENTRY.loser)] == journal.NONE else "evict"


KERNELS = ("_change", "_find_or_create")
"""The methods of recoverable shards that call kernels."""


def kill_by_chance(job: Job, kills: int, seed: int, found: Counter[str]) -> list[str]:
    """Kill the process that works on a job repeatedly, mostly within kernels; return the differences at the end.

    They are differences from an undisturbed shard. The work in progress at each kill is counted.
    """
    straight, rng = job.straight(), random.Random(seed)
    durations = durations_of(job, job.create())
    file = job.create()
    while kills > 0 and is_killed(job, file, durations, rng, found):
        kills -= 1
    shard, _ = job.attach(file)
    job.go_on(shard)
    os.close(file)
    return differences(shard, straight)


def kill_in_last_step(job: Job, kills: int, seed: int, found: Counter[str]) -> list[str]:
    """Kill a process in the job's last step, so many times from the same state; return the differences at the end.

    They are differences from an undisturbed shard. The work in progress at each kill is counted.
    """
    straight, rng = job.straight(), random.Random(seed)
    begun = job.create()
    job.go_on(job.attach(begun)[0], until=job.steps - 1)
    durations = durations_of(job, copy_of(begun))
    different: list[str] = []
    for _ in range(kills):
        file = copy_of(begun)
        is_killed(job, file, durations, rng, found)
        shard, _ = job.attach(file)
        job.go_on(shard)
        different += differences(shard, straight)
        os.close(file)
    os.close(begun)
    return different


def durations_of(job: Job, file: int, methods: Sequence[str] = KERNELS) -> dict[str, float]:
    """Return the durations of calls of the kernels while the job continues in a file, which is closed."""
    # The children inherit compiled kernels and existing arrays.
    warm([SERVER, TAKE_OVER])
    with timed(methods) as durations:
        job.go_on(job.attach(file)[0])
    os.close(file)
    return durations


def is_killed(
    job: Job,
    file: int,
    durations: dict[str, float],
    rng: random.Random,
    found: Counter[str],
    methods: Sequence[str] = ("_change", *["_find_or_create"] * 3),
) -> bool:
    """Let a child continue the job until it is killed, as counted, or has finished."""
    method, calls, moment = rng.choice(methods), rng.randrange(2), rng.random()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with killed_in([method], calls, moment, durations):
                job.go_on(job.attach(file)[0])
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), "the child failed: see its traceback above"
    if code != 0:
        found["kills"] += 1
        found[under_way(file)] += 1
    return code != 0


def copy_of(file: int) -> int:
    """Return another file with the same content, with holes in the same places."""
    copy, at = new_file("copy"), 0
    os.ftruncate(copy, os.fstat(file).st_size)
    # There are no pages after the last data, where there may be a hole of gigabytes.
    while (start := _next_data(file, at)) is not None:
        at = os.lseek(file, start, os.SEEK_HOLE)
        os.lseek(copy, start, os.SEEK_SET)
        while start < at:
            start += os.sendfile(copy, file, start, at - start)
    return copy


def _next_data(file: int, at: int) -> int | None:
    try:
        return os.lseek(file, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


@contextmanager
def wrapped(names: Sequence[str], wrap: Callable[[str, Callable[..., object]], object]) -> Iterator[None]:
    """Replace methods of recoverable shards by the result of `wrap`."""
    real = {name: getattr(Shard, name) for name in names}
    for name, method in real.items():
        setattr(Shard, name, wrap(name, method))
    try:
        yield
    finally:
        for name, method in real.items():
            setattr(Shard, name, method)


@contextmanager
def timed(names: Sequence[str]) -> Iterator[dict[str, float]]:
    """Measure the time that most calls of methods do not exceed, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in names}
    usual: dict[str, float] = {}

    def timing(name: str, method: Callable[..., object]) -> object:
        def call(*arguments: object) -> object:
            began = time.perf_counter()
            result = method(*arguments)
            times[name].append(time.perf_counter() - began)
            return result

        return call

    with wrapped(names, timing):
        yield usual
    usual |= {name: sorted(each)[3 * len(each) // 4] for name, each in times.items()}


@contextmanager
def killed_in(names: Sequence[str], after: int, moment: float, durations: dict[str, float]) -> Iterator[None]:
    """Make the system kill this process at some moment within a call of a method, after so many calls."""
    left = [after]

    def killing(name: str, method: Callable[..., object]) -> object:
        def call(*arguments: object) -> object:
            if left[0] == 0:
                kill_soon(moment * durations[name])
            left[0] -= 1
            return method(*arguments)

        return call

    with wrapped(names, killing):
        yield


def kill_soon(seconds: float) -> None:
    """Make the system send SIGKILL to this process after a time; only a timer is as exact as a kernel is short."""
    libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    event = struct.pack("Qii48x", 0, signal.SIGKILL, 0)
    assert libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)) == 0
    once = struct.pack("qqqq", 0, 0, 0, max(1, int(seconds * 1e9)))
    assert libc.timer_settime(timer, 0, once, None) == 0

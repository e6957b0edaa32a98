"""Cases of `scripts.bench kernels` for checkpoints: save and load against the disk alone, serving during a save."""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from persia_cli.bench.result import OURS, Result
from persia_cli.engines.job import SWITCH_INTERVAL_S
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.kernels.toolchain.memory import zeros
from persia_cli.roles.embedding_server.saving import ShardSaving
from persia_cli.storage.locations import writing_file
from persia_cli.store.checkpoints.manifest import EMBEDDINGS
from persia_cli.store.checkpoints.row_files import load_shard
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.store.checkpoints.saved_rows import RowFile
from persia_cli.store.shard import Shard
from scripts.bench import stores
from scripts.bench.alternate import Scale, Turn, alternate, compared

CHUNK = 2**22
"""Bytes of one write or read of the disk alone."""
REQUESTS = 64
PAGE = 4096
UNIT = "MB/s"


class _Bell:
    """A signal that wakes the loop that saves."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def wake(self) -> None:
        self._rung.set()

    def wait(self) -> None:
        self._rung.wait(0.1)
        self._rung.clear()


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder on the disk of the working folder, which is removed with its content, also after SIGTERM."""
    with (
        terminating_interrupts(),
        _threads_as_in_a_server(),
        TemporaryDirectory(prefix="persia-bench-", dir=Path.cwd()) as name,
    ):
        folder = Path(name, EMBEDDINGS)  # sketches are saved next to the folder of rows
        folder.mkdir()
        yield folder


@contextmanager
def _threads_as_in_a_server() -> Iterator[None]:
    """Have threads switch as often as in the process of an embedding server: two of them save."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _abandoned(saving: ShardSaving) -> Iterator[ShardSaving]:
    """Stop a save with the block, so that the thread that writes does not wait for rows for ever."""
    try:
        yield saving
    finally:
        saving.abandon()


def save(scale: Scale) -> Iterator[Result]:
    """Measure a save that nothing else disturbs, and the loading of its files, against the same disk.

    Rows are loaded into memory that the system has at hand. A virtual machine may have to ask its host for memory that
    it has not used lately: then that, often a few hundred MB/s, is all that would be measured.
    """
    dim = scale.dims[0]
    rows, note = stores.rows_that_fit(scale.rows[0], dim, "adagrad", spare=stores.SPARE / 2)
    (shard,) = stores.filled(dim, "adagrad", rows)
    with _folder() as folder, ThreadPoolExecutor(1) as writer:
        files = _save(shard, folder, writer)
        nbytes = sum(file.nbytes for file in files)
        content = np.random.default_rng(5).bytes(CHUNK)
        timed = alternate(
            {
                OURS: Turn(lambda: _save(shard, folder, writer), loops=1),
                "disk alone": Turn(lambda: _write(folder / "raw", nbytes, content), loops=1),
                "disk, past the page cache": Turn(lambda: _write_directly(folder / "direct", nbytes, content), loops=1),
            },
            scale.rounds,
            clock=perf_counter,
        )
        label = f"dim {dim}, {rows / 1e6:.3g}M rows"
        yield compared(f"save, {label}", timed, nbytes / 1e6, UNIT, note)
        memory = sum(array.nbytes for store in shard.stores for array in (store.rows.arena, store.index.buckets))
        whole = [RowFile(file.rows, (), ((folder / file.name, file),)) for file in files if file.rows]
        timed = alternate(
            {
                OURS: Turn(lambda: _load(shard, whole), prepare=lambda: _warm_memory(memory), loops=1),
                "disk alone": Turn(lambda: _read(folder / "raw"), loops=1),
            },
            scale.rounds,
            clock=perf_counter,
        )
        yield compared(f"load, {label}", timed, nbytes / 1e6, UNIT, note)


def serve(scale: Scale) -> Iterator[Result]:
    """Measure look-ups and updates of batches while a save is in progress, against the same without one."""
    dim = scale.dims[0]
    rows, note = stores.rows_that_fit(scale.rows[0], dim, "adagrad", spare=stores.SPARE / 2)
    (shard,) = stores.filled(dim, "adagrad", rows)
    asked = stores.requests(rows, min(scale.batch * 26, rows), True, REQUESTS)
    sent = stores.gradients(max(each.ids.size for each in asked), dim)

    def train(saving: ShardSaving | None) -> None:
        for number, each in enumerate(asked):
            shard.look_up(0, each.keys, each.tables, 1, True, number)
            shard.update(0, each.keys, each.tables, sent[: each.ids.size], 1, number)
            if saving is not None:
                saving.copy_next()

    with _folder() as folder, ThreadPoolExecutor(1) as writer:

        def train_and_save() -> None:
            with _abandoned(ShardSaving(shard, folder, writer, _Bell().wake, lambda rows: None)) as saving:
                train(saving)

        timed = alternate(
            {OURS: Turn(train_and_save, loops=1), "no save": Turn(lambda: train(None), loops=1)},
            scale.rounds,
            clock=perf_counter,
        )
    label = f"serve while saving, dim {dim}, {rows / 1e6:.3g}M rows"
    yield compared(label, timed, sum(each.ids.size for each in asked) / 1e6, "Mrows/s", note)


def _save(shard: Shard, folder: Path, writer: ThreadPoolExecutor) -> list[SavedFile]:
    bell = _Bell()
    with _abandoned(ShardSaving(shard, folder, writer, bell.wake, lambda rows: None)) as saving:
        while not saving.done:
            while saving.can_copy:
                saving.copy_next()
            bell.wait()
        return saving.finish()


def _load(shard: Shard, files: list[RowFile]) -> None:
    for file in files:
        for path, _ in file.parts:
            assert isinstance(path, Path)
            _forget(path)
    load_shard(Shard(shard.layout, 0, 1), files)


def _warm_memory(nbytes: int) -> None:
    """Use so much memory and give it back, so that the system has it."""
    zeros(nbytes, np.uint8)[::PAGE] = 1


def _forget(path: Path) -> None:
    """Have the system forget a file's content, so that it is read from the disk and not from memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write(path: Path, nbytes: int, content: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        for first in range(0, nbytes, CHUNK):
            file.write(content[: nbytes - first])
        os.fsync(file.fileno())


def _write_directly(path: Path, nbytes: int, content: bytes) -> None:
    """Write whole chunks as a save does where it can: the disk takes them from memory, which lies in huge pages."""
    chunk = zeros(CHUNK, np.uint8)
    chunk[:] = np.frombuffer(content, np.uint8)
    with writing_file(path) as sink:
        for _ in range(0, nbytes, CHUNK):
            sink.write(chunk.data)


def _read(path: Path) -> None:
    _forget(path)
    with path.open("rb", buffering=0) as file:
        while file.read(CHUNK):
            pass

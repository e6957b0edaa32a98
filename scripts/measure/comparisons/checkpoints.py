"""A save that nothing else disturbs, and the load of its files, against the disk; training during a save; and cuts.

A cut is what `publish` writes of the rows that have changed: its pauses are the time in which a server answers nothing.

Writes about 3 GB to the working folder's disk, and removes it. Rows are loaded into memory that the system has at hand:
a virtual machine may have to ask its host for memory that it has not used lately, often at a few hundred MB/s.
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
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
from scripts.measure import Given, Note, stores
from scripts.measure.timing import Turn, alternate, compared, measured

DIM = 16
CHUNK = 2**22
"""Bytes of one write or read of the disk alone."""
REQUESTS = 64
PAGE = 4096
DISK = "disk alone"
CUT = 10
"""The step of cuts: later than all others."""


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table, as far as they fit the memory")


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Fill a table, then measure."""
    wanted = 60_000 if given.quick else given.rows
    rows, fewer = stores.rows_that_fit(wanted, DIM, "adagrad", spare=stores.SPARE / 2)
    label = f"dim {DIM}, {stores.label(rows)}"
    note(f"filling {stores.label(rows)}")
    shard = stores.filled(DIM, "adagrad", rows, names_left=True)
    with ExitStack() as exit_stack:
        exit_stack.enter_context(terminating_interrupts())
        # Threads switch as often as in the process of an embedding server: two of them save.
        exit_stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        name = exit_stack.enter_context(TemporaryDirectory(prefix="measure-checkpoints-", dir=Path.cwd()))
        folder = Path(name, EMBEDDINGS)  # sketches are saved next to the folder of rows
        folder.mkdir()
        saver = Saver(shard, folder, exit_stack.enter_context(ThreadPoolExecutor(1)))
        note("saving")
        files = saver.save()
        nbytes = sum(file.nbytes for file in files)
        sides = {OURS: saver.save, DISK: lambda: _write(folder / "raw", nbytes)}
        timed = alternate({side: Turn(call, loops=1) for side, call in sides.items()}, given.rounds, clock=perf_counter)
        yield compared(f"save, {label}", timed, nbytes / 1e6, "MB/s", fewer)
        note("loading")
        memory = sum(array.nbytes for store in shard.stores for array in (store.rows.arena, store.index.buckets))
        loads = {
            OURS: Turn(lambda: saver.load(files), prepare=lambda: _touch(memory), loops=1),
            DISK: Turn(lambda: _read(folder / "raw"), loops=1),
        }
        timed = alternate(loads, given.rounds, clock=perf_counter)
        yield compared(f"load, {label}", timed, nbytes / 1e6, "MB/s", fewer)
        note("training during saves")
        requests = stores.requests(rows, stores.BATCH * 26, True, REQUESTS)
        sent = stores.gradients(max(request.ids.size for request in requests), DIM)
        trainings = {
            OURS: Turn(lambda: saver.train(requests, sent), loops=1),
            "no save": Turn(lambda: stores.train(shard, requests, sent), loops=1),
        }
        timed = alternate(trainings, given.rounds, clock=perf_counter)
        yield compared(f"training during a save, {label}", timed, stores.millions(requests), "Mrows/s", fewer)
        note("cutting 1 % of the rows")
        saver.change(rows, rows // 100)
        cuts = [saver.cut() for _ in range(given.rounds)]
        for name, pick in (("begin", lambda pauses: pauses[0]), ("longest other pause", lambda pauses: max(pauses[1:])),
                           ("all pauses", sum)):  # fmt: skip
            yield measured(f"cut of 1 %, {name}, {label}", "ms", {OURS: [1e3 * pick(each) for each in cuts]}, fewer)


class Saver:
    """Saves a shard to a folder again and again; `writer` writes its files."""

    def __init__(self, shard: Shard, folder: Path, writer: ThreadPoolExecutor) -> None:
        self._shard, self._folder, self._writer = shard, folder, writer
        self._bell = Event()

    def _begin(self, exit_stack: ExitStack, since: int | None = None) -> ShardSaving:
        saving = ShardSaving(self._shard, self._folder, self._writer, self._bell.set, lambda rows: None, since=since)
        # Else the thread that writes would wait for rows for ever if this one failed.
        exit_stack.callback(saving.abandon)
        return saving

    def save(self) -> list[SavedFile]:
        """Save, and do nothing else."""
        with ExitStack() as exit_stack:
            saving = self._begin(exit_stack)
            while not saving.done:
                while saving.can_copy:
                    saving.copy_next()
                self._bell.wait(0.1)
                self._bell.clear()
            return saving.finish()

    def change(self, rows: int, count: int) -> None:
        """Use some of so many rows in the step of the cuts."""
        part = stores.request(np.random.default_rng(4).choice(rows, count, replace=False))
        self._shard.look_up(0, part.keys, part.tables, CUT, True)

    def cut(self) -> list[float]:
        """Write the rows used in the step of the cuts; return the seconds of each pause, that of the begin first."""
        with ExitStack() as exit_stack:
            begin = perf_counter()
            saving = self._begin(exit_stack, since=CUT)
            pauses = [perf_counter() - begin]
            while not saving.done:
                while saving.can_copy:
                    begin = perf_counter()
                    saving.copy_next()
                    pauses.append(perf_counter() - begin)
                self._bell.wait(0.1)
                self._bell.clear()
            saving.finish()
            return pauses

    def train(self, requests: list[stores.RowRequest], sent: stores.Block) -> None:
        """Train while a save is in progress, which is abandoned at the end."""
        with ExitStack() as exit_stack:
            saving = self._begin(exit_stack)
            for request in requests:
                stores.train(self._shard, [request], sent)
                saving.copy_next()

    def load(self, files: list[SavedFile]) -> None:
        """Load the files from the disk."""
        for file in files:
            _forget(self._folder / file.name)
        rows = [RowFile(file.rows, (), ((self._folder / file.name, file),)) for file in files if file.rows]
        load_shard(Shard(self._shard.layout, 0, 1), rows)


def _touch(nbytes: int) -> None:
    """Use so much memory and give it back, so that the system has it."""
    zeros(nbytes, np.uint8)[::PAGE] = 1


def _forget(path: Path) -> None:
    """Have the system forget a file's content, so that it is read from the disk and not from memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write(path: Path, nbytes: int) -> None:
    """Write whole chunks as a save does where it can: past the page cache, from memory in huge pages."""
    chunk = zeros(CHUNK, np.uint8)
    chunk[:] = np.random.default_rng(5).integers(256, size=CHUNK, dtype=np.uint8)
    with writing_file(path) as sink:
        for _ in range(0, nbytes, CHUNK):
            sink.write(chunk.data)


def _read(path: Path) -> None:
    _forget(path)
    with path.open("rb", buffering=0) as file:
        while file.read(CHUNK):
            pass

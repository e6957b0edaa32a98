"""The dense part of checkpoints: copied between two steps, and written by a thread while training goes on."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from persia_cli.errors import CheckpointError, DiskError
from persia_cli.roles.link import Link
from persia_cli.roles.rank_memory import RankMemory
from persia_cli.storage.places import Place, place_of
from persia_cli.train.dense_state import TensorFile, write_files
from persia_cli.train.dense_trainer import DenseTrainer
from persia_cli.wire.job_messages import SaveModel
from persia_cli.wire.messages import Ack

DENSE = "dense"
"""Folder of a checkpoint that holds the dense weights and optimizer."""


class DenseSaving:
    """Writes the dense files of one checkpoint at a time; for the training thread of rank 0.

    `call` has the I/O thread call a function.
    """

    def __init__(self, link: Link, call: Callable[[Callable[[], None]], None]) -> None:
        self._link, self._call = link, call
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"{link.name}-files")
        self._writing: Future[None] | None = None
        self._again: int | None = None
        """Number of the instruction to save that a process before this one had begun to carry out."""

    def begin(self, number: int, work: SaveModel, trainer: DenseTrainer, memory: RankMemory | None) -> None:
        """Copy the dense state, into `memory` if there is one, and have it written, as an instruction says."""
        if number == self._again:
            return
        files = trainer.files() if memory is None else memory.keep_save(work.folder, work.step, number, trainer)
        self._submit(work.folder, work.step, files, memory)

    def go_on(self, memory: RankMemory) -> None:
        """Write the files that a process before this one had begun to write, if it did not end that."""
        if save := memory.unfinished_save():
            self._again = save.number
            self._submit(save.folder, save.step, save.files, memory)

    def _submit(self, folder: str, step: int, files: Sequence[TensorFile], memory: RankMemory | None) -> None:
        self._writing = self._writer.submit(self._write, place_of(folder) / DENSE, step, files, memory)

    def _write(self, folder: Place, step: int, files: Sequence[TensorFile], memory: RankMemory | None) -> None:
        """Write the files; on a thread of its own."""

        def on_taken(_: Ack) -> None:
            if memory is not None:
                memory.end_save(step)

        try:
            saved = partial(self._link.saved, step, write_files(files, folder), on_taken=on_taken)
        except (DiskError, CheckpointError) as error:
            saved = partial(self._link.saved, step, (), str(error), on_taken=on_taken)
        self._call(saved)

    def check(self) -> None:
        """Raise the error because of which the files could not be written, if there is one."""
        if self._writing is not None and self._writing.done():
            self._writing.result()
            self._writing = None

    def close(self) -> None:
        """End the thread after the file that it writes now; does not wait, as a stalled disk would hide an error."""
        self._writer.shutdown(wait=False, cancel_futures=True)

"""The dense part of checkpoints: copied between two steps, and written by a thread while training continues."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from persia_cli.errors import CheckpointError, DiskError
from persia_cli.roles.session import CoordinatorSession
from persia_cli.storage.locations import Location, location_of
from persia_cli.training.dense_state import TensorFile, write_files
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.wire.job_messages import SaveModel

DENSE = "dense"
"""Folder of a checkpoint that holds the dense weights and optimizer."""


class DenseSaving:
    """The writer of dense files, one checkpoint at a time; for the training thread of rank 0.

    `call` makes the I/O thread call a function.
    """

    def __init__(self, session: CoordinatorSession, call: Callable[[Callable[[], None]], None]) -> None:
        self._session, self._call = session, call
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"{session.name}-files")
        self._writing: Future[None] | None = None

    def begin(self, work: SaveModel, trainer: DenseTrainer) -> None:
        """Copy the dense state, and start to write it into the folder of an instruction."""
        folder = location_of(work.folder) / DENSE
        self._writing = self._writer.submit(self._write, folder, work.step, trainer.files())

    def _write(self, folder: Location, step: int, files: Sequence[TensorFile]) -> None:
        """Write the files; on the writer's thread."""
        try:
            saved = partial(self._session.saved, step, write_files(files, folder))
        except (DiskError, CheckpointError) as error:
            saved = partial(self._session.saved, step, (), str(error))
        self._call(saved)

    def check(self) -> None:
        """Raise the error because of which the files could not be written, if any."""
        if self._writing is not None and self._writing.done():
            self._writing.result()
            self._writing = None

    def close(self) -> None:
        """End the thread after its present file; do not wait, since a stalled disk would hide an error."""
        self._writer.shutdown(wait=False, cancel_futures=True)

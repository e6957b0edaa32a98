"""What a rank keeps in a memory file that outlives its process: dense state, gradients under way, figures."""

import os
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import Run, SyncMode
from persia_cli.errors import ConfigError, PoisonError
from persia_cli.kernels.memory import HUGE_PAGE
from persia_cli.plan.columns import label_names
from persia_cli.plan.job import Job
from persia_cli.store.memory_file import HEADER, MAGIC, SERVING, MemoryFile
from persia_cli.store.outbox import Outbox
from persia_cli.train.dense_slots import DESCRIPTION_BYTES, DenseSlot, DenseSlots, slot_bytes
from persia_cli.train.dense_state import TensorFile
from persia_cli.train.dense_trainer import DenseTrainer
from persia_cli.train.device import device_of
from persia_cli.train.inputs import Samples
from persia_cli.train.kept_figures import KeptFigures
from persia_cli.train.step import Scored
from persia_cli.wire.messages import Rows

UNDER_WAY, DEADLY, DEATHS, LEFT = range(4)
"""Words of the file: 1 + the last step that was begun; 1 + the step at which a process died last, and how many did;
1 if the last process ended of its own accord."""
SLOTS = 3
"""Copies of the dense state: two that take turns, and one for a checkpoint that is being written."""
MOST_DEATHS = 1
"""Processes that may die at the same step; the next one would too."""
INTERVALS = 4
"""Intervals between two lines of metrics whose figures have room, all but the last without an answer."""
AUTO_LEAST, AUTO_MOST, AUTO_SAMPLES = 1 << 20, 16 << 20, 256
"""Bytes of dense state up to which recovery.dense_memory=auto copies it in each step, whatever a step is; and those up
to which it does so if a rank has so many samples in a step.

To copy a weight, with what Adam keeps of it, takes half a nanosecond to one, and to train it about a tenth of one for
each sample: with 256 samples a copy is about two hundredths of a step, however large the network is."""
COPIES = {"sgd": 1, "adagrad": 2, "adam": 3, "adamw": 3}
"""Numbers of each weight and its optimizer, by kind of dense optimizer."""


class UnfinishedSave(NamedTuple):
    """A checkpoint whose dense files were not known to be written when the process died."""

    folder: str
    step: int
    number: int
    files: list[TensorFile]


class _Save(msgspec.Struct):
    folder: str
    step: int
    number: int


_SAVE = msgspec.json.Decoder(_Save)


class RankMemory:
    """One rank's memory, for the training thread. It is made by `rank_memory`; the launcher owns the file.

    A step is *committed* once its gradients are in the outbox, its figures are noted and the dense state after it is in
    a slot. Only then its gradients leave. So whatever a process had under way when it died has had no effect, and the
    next process does that step again; those before it are done, and their gradients are in the outbox.
    """

    def __init__(self, file: int, run: Run, job: Job, trainer: DenseTrainer, rank: int, ahead: int) -> None:
        """Take over what an earlier process left in the file if it is whole, or begin anew.

        The trainer is a new one, and `ahead` steps may be in flight. Raises MemoryFileError if the memory is that of
        another job or still in use.
        """
        self.is_taken_over = _is_whole(file)
        ranks, tasks, servers = run.cluster.nn_workers, len(label_names(run)), run.cluster.embedding_servers
        steps, most = INTERVALS * run.train.log_every_steps, -(-run.train.batch_size // ranks)
        size = slot_bytes(trainer.state())
        nbytes = SLOTS * (size + DESCRIPTION_BYTES) + Outbox.nbytes(ahead)
        nbytes += KeptFigures.nbytes(steps, most, tasks, servers)
        identity = f"nn-worker {rank} of {ranks}, {job.train_rows} rows: {run.model_dump_json()}"
        self._file = MemoryFile(file, identity, nbytes + 16 * HUGE_PAGE, self.is_taken_over)
        self._words: NDArray[np.uint64] = self._file.array(8, np.uint64)
        array = self._file.array
        self.slots = DenseSlots(array, size)
        self._save = DenseSlot(array, size)
        self.outbox = Outbox(array, ahead)
        self.figures = KeptFigures(array, steps, most, tasks, servers)
        self._state: list[TensorFile] = []
        self._version: Hashable = None

    def serve(self) -> None:
        """Say that there is a whole state, so that a later process may take over."""
        self._file.state = SERVING

    def begin(self, step: int) -> None:
        """Say that a step begins."""
        self._words[UNDER_WAY] = step + 1

    def leave(self) -> None:
        """Say that this process ends of its own accord, and not because of the step that is under way."""
        self._words[LEFT] = 1

    def commit(self, step: int, trainer: DenseTrainer, samples: Samples, scored: Scored, rows: Rows) -> None:
        """Note a step's figures, then the dense state after it; its gradients are in the outbox already."""
        self.figures.put(step, samples, scored, rows)
        self.note_state(step + 1, trainer)

    def note_state(self, following: int, trainer: DenseTrainer) -> None:
        """Copy the dense state as it is before a step."""
        version = trainer.state_version
        if version is None or version != self._version:
            self._state, self._version = trainer.state(), version
        self.slots.write(following, self._state)

    def count_death(self, following: int) -> int:
        """Count the death of the process before at the step it had begun; return how many are begun again.

        The rank goes on with the step `following`. Raises PoisonError if too many processes have died at one step.
        """
        words = self._words
        begun, left = int(words[UNDER_WAY]), bool(words[LEFT])
        words[LEFT] = 0
        if begun <= following:
            return 0
        if not left:
            words[DEATHS] = words[DEATHS] + np.uint64(1) if int(words[DEADLY]) == begun else 1
            words[DEADLY] = begun
        words[UNDER_WAY] = 0
        if not left and int(words[DEATHS]) > MOST_DEATHS:
            raise PoisonError(
                f"{int(words[DEATHS])} processes have died in the same training step {begun - 1}: its batch is poison, "
                "so the job does not go on"
            )
        return begun - following

    def keep_save(self, folder: str, step: int, number: int, trainer: DenseTrainer) -> list[TensorFile]:
        """Copy the state for a checkpoint, so that a later process can write it if this one does not; return it.

        `number` is that of the instruction to save.
        """
        note = msgspec.json.encode(_Save(folder, step, number)).decode()
        self._save.write(step, trainer.state(), note)
        return list(self._save.read()[0].values())

    def unfinished_save(self) -> UnfinishedSave | None:
        """Return the checkpoint of `keep_save` that has not ended."""
        if self._save.next is None:
            return None
        files, note = self._save.read()
        save = _SAVE.decode(note)
        return UnfinishedSave(save.folder, save.step, save.number, list(files.values()))

    def end_save(self, step: int) -> None:
        """Say that the files of a step's checkpoint are written, or given up, and that the coordinator knows."""
        if self._save.next == step:
            self._save.clear()


def wants_memory(run: Run, job: Job, rank: int, state: Callable[[], Sequence[TensorFile]]) -> bool:
    """Return whether a rank with this dense state, called for in training alone, keeps it (`recovery.dense_memory`).

    Raises ConfigError if it should and cannot.
    """
    wanted = run.recovery.dense_memory
    if job.task != "train" or wanted == "off":
        return False
    device = device_of(run, rank)
    if device.type != "cpu" and wanted == "every_step":
        raise ConfigError(
            f"recovery.dense_memory=every_step keeps dense weights that are trained on the CPU, and nn-worker-{rank} "
            f"trains on {device}; use auto or off, or train.device=cpu"
        )
    if wanted == "every_step":
        return True
    weights = sum(tensor.numel() * tensor.element_size() for tensor in state()[0].tensors.values())
    samples = run.train.batch_size // run.cluster.nn_workers
    most = AUTO_MOST if samples >= AUTO_SAMPLES else AUTO_LEAST
    # In sync mode servers wait for the dense step anyway; in others gradients would leave later than they could.
    return (
        device.type == "cpu" and isinstance(run.mode, SyncMode) and weights * COPIES[run.optimizer.dense.kind] <= most
    )


def _is_whole(file: int) -> bool:
    """Return whether an earlier process has left a whole state in a file."""
    header = os.pread(file, HEADER, 0)
    return header[: len(MAGIC)] == MAGIC and int.from_bytes(header[16:24], "little") == SERVING

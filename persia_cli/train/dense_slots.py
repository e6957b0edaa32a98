"""Dense state in a memory file, so that a later process can go on after a death: two slots that are written in turn."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from persia_cli.errors import MemoryFileError
from persia_cli.train.dense_state import TensorFile

WHOLE, SIZE, BYTES = range(3)
"""Words of a slot's head: 1 + the number of the next step if the slot is whole, 0 otherwise; bytes of the description
and of the tensors."""
DESCRIPTION_BYTES = 8 << 20
LINE = 64
"""Alignment of each tensor in bytes."""
STATES = 3
"""Tensors of a weight's size that optimizers keep of it, at the most, and one more."""
DTYPES: dict[str, torch.dtype] = {
    str(dtype): dtype
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)
}

Arrays = Callable[[int, DTypeLike], NDArray[Any]]
"""`MemoryFile.array`."""


class KeptTensor(msgspec.Struct, frozen=True):
    """A tensor of a slot, by its place in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int


class KeptFile(msgspec.Struct, frozen=True):
    """What a slot has of a file of tensors."""

    name: str
    record: dict[str, Any]
    tensors: tuple[KeptTensor, ...]


class SlotContent(msgspec.Struct, frozen=True):
    """The content of a slot; `note` is what its writer wants to know again."""

    files: tuple[KeptFile, ...]
    note: str = ""


_DECODER = msgspec.json.Decoder(SlotContent)


def slot_bytes(state: Sequence[TensorFile]) -> int:
    """Return the room for the tensors of a network's state, before its optimizer has made any of its own."""
    sizes = [tensor.numel() * tensor.element_size() for file in state for tensor in file.tensors.values()]
    return (1 + STATES) * (sum(sizes) + 2 * LINE * len(sizes))


class DenseSlot:
    """One copy of the dense state, as it is before a step. It is whole, or nothing."""

    def __init__(self, array: Arrays, nbytes: int) -> None:
        """Take the next `nbytes` of a memory file, and as many as a slot needs besides."""
        self._head: NDArray[np.uint64] = array(8, np.uint64)
        self._description: NDArray[np.uint8] = array(DESCRIPTION_BYTES, np.uint8)
        self._bytes: NDArray[np.uint8] = array(nbytes, np.uint8)
        self._state: Sequence[TensorFile] | None = None
        self._pairs: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])

    @property
    def next(self) -> int | None:
        """The step before which the state is the one in the slot; None if the slot is not whole."""
        return int(self._head[WHOLE]) - 1 if self._head[WHOLE] else None

    def clear(self) -> None:
        """Forget what is in the slot."""
        self._head[WHOLE] = 0

    def write(self, following: int, state: Sequence[TensorFile], note: str = "") -> None:
        """Copy the state as it is before the step `following`.

        Lists of the same tensors are best given as the same object, since they are then described only once. Raises
        MemoryError if they do not fit.
        """
        self._head[WHOLE] = 0
        if self._state is not state or note:
            self._describe(state, note)
        targets, sources = self._pairs
        if targets:
            torch._foreach_copy_(targets, sources)
        # This process can be interrupted between any two of these statements, and the system loses no store.
        self._head[WHOLE] = following + 1

    def _describe(self, state: Sequence[TensorFile], note: str) -> None:
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        files, end = [], 0
        for file in state:
            tensors = []
            for name, tensor in file.tensors.items():
                kept = KeptTensor(name, str(tensor.dtype), tuple(tensor.shape), -(-end // LINE) * LINE)
                end = kept.start + tensor.numel() * tensor.element_size()
                tensors.append(kept)
                targets.append(self._view(kept))
                sources.append(tensor.detach())
            files.append(KeptFile(file.name, file.record, tuple(tensors)))
        described = msgspec.json.encode(SlotContent(tuple(files), note))
        if len(described) > DESCRIPTION_BYTES:
            raise MemoryError(f"a description of {len(described):,} bytes")
        self._description[: len(described)] = np.frombuffer(described, np.uint8)
        self._head[SIZE], self._head[BYTES] = len(described), end
        self._state, self._pairs = state, (targets, sources)

    def _view(self, kept: KeptTensor) -> torch.Tensor:
        dtype = DTYPES.get(kept.dtype)
        if dtype is None:
            raise MemoryFileError(f"the dense state has a tensor of {kept.dtype}, which cannot be kept in memory")
        stop = kept.start + int(np.prod(kept.shape, dtype=np.int64)) * dtype.itemsize
        if stop > self._bytes.size:
            raise MemoryError(f"dense state of more than {self._bytes.size:,} bytes")
        return torch.from_numpy(self._bytes[kept.start : stop]).view(dtype).reshape(kept.shape)

    def read(self) -> tuple[dict[str, TensorFile], str]:
        """Return copies of the files in a whole slot, by name, and its note."""
        content = _DECODER.decode(self._description[: int(self._head[SIZE])].tobytes())
        files = {}
        for file in content.files:
            tensors = {kept.name: self._view(kept).clone() for kept in file.tensors}
            files[file.name] = TensorFile(file.name, tensors, file.record)
        return files, content.note


class DenseSlots:
    """Two slots: one is whole while the other is written."""

    def __init__(self, array: Arrays, nbytes: int) -> None:
        self._slots = [DenseSlot(array, nbytes), DenseSlot(array, nbytes)]

    @property
    def steps(self) -> list[int]:
        """The steps before which the state is known, ascending."""
        return sorted(slot.next for slot in self._slots if slot.next is not None)

    def write(self, following: int, state: Sequence[TensorFile]) -> None:
        """Copy the state as it is before the step `following`, one more than in the last call."""
        self._slots[following % 2].write(following, state)

    def read(self, following: int) -> dict[str, TensorFile]:
        """Return the state as it was before a step, one of `steps`; later ones are forgotten."""
        for slot in self._slots:
            if slot.next is not None and slot.next > following:
                slot.clear()
        return self._slots[following % 2].read()[0]

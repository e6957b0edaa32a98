"""The sequences of some samples as a causal network reads them: ragged, with the row of each slot, on its device."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding

from persia_cli.model.ragged import RaggedLayout, Slots, Tokens, plan

Numbers = NDArray[np.int64]
Copy = Callable[[NDArray[np.generic]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """Sequences of `size` samples; arrays int64."""

    size: int
    tokens: torch.Tensor
    """Row of each slot's element, [slots], or its rows, [slots, rounds]."""
    layout: RaggedLayout
    newest: torch.Tensor
    """Slot of the newest element of each sequence that has one; `owners` are their samples."""
    owners: torch.Tensor

    def read(self, leaf: torch.Tensor) -> Tokens:
        """Return what the network reads, by the unique rows float32 [U, dim]."""
        rows = embedding(self.tokens, leaf)
        return Tokens(rows if rows.dim() == 2 else rows.sum(1), self.layout)

    def last(self, states: torch.Tensor) -> torch.Tensor:
        """Return the last state of each sample, [size, dim], of those of all slots; zeros after no sequence."""
        return states.new_zeros(self.size, states.shape[1]).index_copy(0, self.owners, states[self.newest])


def ragged_rows(
    rows: NDArray[np.integer],
    stops: Numbers,
    lengths: Numbers,
    copy: Copy,
    gaps: NDArray[np.float32] | None = None,
) -> tuple[RaggedRows, Slots, Numbers]:
    """Lay out sequences and `copy` them to the device; return the plan, and the entry of each slot, int64 [slots], too.

    `rows` [E] or [E, rounds] are those of entries, the elements of all sequences. A network reads the newest `lengths`
    [n] of those before each of the `stops` [n]. `gaps` float32 [n, width] are the times between these, if they have
    any (`persia_cli.data.read.gaps`).
    """
    slots = plan(lengths)
    ages = slots.age.clip(min=0)
    entries = stops[slots.sequence] - 1 - ages
    newest = np.flatnonzero(slots.age == 0)
    of_slots = None
    if gaps is not None:
        there = gaps[slots.sequence, lengths[slots.sequence] - 1 - ages]
        of_slots = copy(np.where(slots.age < 0, np.float32(0.0), there))
    ragged = RaggedRows(
        size=len(lengths),
        tokens=copy(rows[entries].astype(np.int64)),
        layout=RaggedLayout(slots.sizes, slots.widths, copy(ages), of_slots),
        newest=copy(newest),
        owners=copy(slots.sequence[newest]),
    )
    return ragged, slots, entries

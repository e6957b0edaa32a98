"""Ragged batches: sequences of different lengths in a few blocks of similar ones, padded at their end.

A batch lies in one flat buffer of slots, a token each, so that all layers of single tokens compute it at once, with
hardly any padding. A block is a part of the buffer, `[sequences, width]`, in which elements attend to each other. A
padded slot comes after all elements of its sequence, so causal attention needs no mask for it. A padded batch, as
served and exported models read it, is one block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

BLOCKS = 8
"""Most blocks of a batch; more cost as much as the padding that they save."""
COST = 24
"""Slots whose computation takes as long as one block more."""
LENGTHS = 48
"""Most different lengths at which a batch is cut, so that planning stays cheap."""

Numbers = NDArray[np.int64]


class RaggedLayout(NamedTuple):
    """The positions of a batch's tokens in its buffer of slots."""

    sizes: Sequence[int]
    """Slots of each block; there is at least one block."""
    widths: Sequence[int]
    """Slots of each sequence of a block."""
    ages: torch.Tensor
    """Distance of each slot's element from the newest one of its sequence, int64 [slots]; 0 in padded slots."""
    gaps: torch.Tensor | None = None
    """Time from each slot's element to the next one, after the newest to the sample, float32 [slots]; 0 in padded ones.
    None for sequences without times."""
    buckets: Sequence[torch.Tensor] = ()
    """For each block, the buckets of the times between its elements, int32 [sequences, width, width], once computed."""

    def split(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the values [sequences, width, ...] of each block, of values [slots, ...]."""
        # A single block stays whole: exported models take batches of any size.
        parts = torch.split(values, list(self.sizes)) if len(self.sizes) > 1 else [values]
        return [part.view(-1, width, *part.shape[1:]) for part, width in zip(parts, self.widths, strict=True)]

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return values [slots, ...] of those of each block: the inverse of `split`."""
        flat = [part.flatten(0, 1) for part in parts]
        return flat[0] if len(flat) == 1 else torch.cat(flat)


class Tokens(NamedTuple):
    """Sequences as a network reads them: the row of each slot's element, float32 [slots, dim], and their layout."""

    rows: torch.Tensor
    layout: RaggedLayout


def padded(mask: torch.Tensor, gaps: torch.Tensor | None = None) -> RaggedLayout:
    """Return the layout of a padded batch: one block, of a mask bool [n, width] whose elements come first.

    `gaps` float32 [n, width] are those of sequences with times.
    """
    ages = mask.sum(1, keepdim=True) - 1 - torch.arange(mask.shape[1], device=mask.device)
    slots = [mask.shape[0] * mask.shape[1]], [mask.shape[1]], (ages.clamp(min=0) * mask).flatten()
    return RaggedLayout(*slots, None if gaps is None else gaps.flatten())


class Slots(NamedTuple):
    """The plan of a ragged batch: the blocks' sizes and widths, and what each slot has, int64 [slots]."""

    sizes: list[int]
    widths: list[int]
    sequence: Numbers
    """Number of the sequence."""
    age: Numbers
    """Distance of the slot's element from the newest one of its sequence; below 0 in padded slots, after that one."""


def plan(lengths: Numbers) -> Slots:
    """Lay out sequences of some lengths in at most `BLOCKS` blocks; those of length 0 have no slot."""
    order = np.argsort(lengths, kind="stable")
    order = order[np.searchsorted(lengths[order], 1) :]
    cuts = _cuts(lengths[order])
    if not cuts:
        return Slots([0], [1], order, order)
    widths = [int(lengths[order[stop - 1]]) for _, stop in cuts]
    counts = [stop - first for first, stop in cuts]
    width_of = np.repeat(widths, counts)
    firsts = np.cumsum(width_of) - width_of
    sequence = np.repeat(order, width_of)
    age = np.repeat(firsts + lengths[order] - 1, width_of) - np.arange(sequence.size)
    return Slots([count * width for count, width in zip(counts, widths, strict=True)], widths, sequence, age)


def _cuts(lengths: Numbers) -> list[tuple[int, int]]:
    """Cut ascending lengths into at most `BLOCKS` runs, so that padded slots and blocks together cost least."""
    if not lengths.size:
        return []
    stops = np.append(np.flatnonzero(np.diff(lengths)) + 1, lengths.size)
    if stops.size > LENGTHS:
        stops = stops[np.linspace(0, stops.size - 1, LENGTHS).astype(np.int64)]
    edges, widths = np.append(0, stops), lengths[stops - 1]
    # The cost of a block from each edge to each later one.
    cost = ((edges[1:] - edges[:, None]) * widths + COST).astype(np.float64)
    cost[np.arange(edges.size)[:, None] > np.arange(stops.size)] = np.inf
    best, came = np.where(edges == 0, 0.0, np.inf), []
    least, blocks = np.inf, 0
    for number in range(1, min(BLOCKS, stops.size) + 1):
        options = best[:, None] + cost
        came.append(options.argmin(0))
        best = np.append(np.inf, options.min(0))
        if best[-1] < least:
            least, blocks = best[-1], number
    cuts, stop = [], edges.size - 1
    for earlier in reversed(came[:blocks]):
        first = int(earlier[stop - 1])
        cuts.append((int(edges[first]), int(edges[stop])))
        stop = first
    return cuts[::-1]

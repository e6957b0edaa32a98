"""The batches of a job, by which roles refuse a batch that is not one of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from persia_cli.control.position import StepGrid
from persia_cli.control.splits import SPLIT_NAMES, TRAIN
from persia_cli.errors import WireError


@dataclass(frozen=True, slots=True)
class JobBatches:
    """The batches of a job of `steps` training steps; a split without rows has no grid, evaluation steps never end."""

    grids: Mapping[int, StepGrid]
    steps: int
    world_size: int
    generation: int = 0

    def size(self, generation: int, split: int, step: int, rank: int) -> int:
        """Return the number of the rank's samples in the step; raises WireError if the job has no such batch."""
        if generation != self.generation:
            raise WireError(f"generation {generation} is over; this replica is at {self.generation}")
        if not 0 <= rank < self.world_size:
            raise WireError(f"there is no rank {rank} in a world of {self.world_size}")
        grid = self.grids.get(split)
        if grid is None or step < 0 or (split == TRAIN and step >= self.steps):
            raise WireError(f"this job has no step {step} of the split '{SPLIT_NAMES.get(split, split)}'")
        start, stop = grid.rows_of(step, rank)
        return stop - start

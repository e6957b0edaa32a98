"""The data position as pure arithmetic: splits, the samples of each step, and the batches that a job has."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from persia_cli.errors import WireError

TRAIN = 0
EVAL = 1

SplitName = Literal["train", "eval"]

SPLIT_NAMES: dict[int, SplitName] = {TRAIN: "train", EVAL: "eval"}
"""The splits of a data set, as numbers on the wire and names in metrics."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The identity of a data set's samples, and of the order of those of the training split.

    A position in the data means the same samples as long as this is equal. Generated samples are in no file.
    """

    files: int = 0
    row_groups: int = 0
    """Row groups that have training samples; 0 without shuffle, where they do not count."""
    digest: str = ""
    """A checksum of the files' names, below their common folder, and of the training rows in each row group."""
    contents: tuple[str, ...] = ()
    """A checksum of the content of each file with samples to train or evaluate on, in the order of files."""

    @property
    def order(self) -> tuple[int, int, str]:
        """All that the order of the training samples depends on."""
        return self.files, self.row_groups, self.digest


MADE_UP = TrainingData()
"""The training data of generated samples."""


@dataclass(frozen=True, slots=True)
class StepGrid:
    """A split cut into steps of `batch_size` samples, each shared by `world_size` ranks.

    Step t of the job is step t mod `steps` of pass (epoch) t div `steps`. Only the last step of a pass can be short; a
    rank's part keeps its place in the full batch, so a rank may get no sample of a short step.

    A portion of data that grows is one pass: its number is `epoch`, and it has the steps and samples from `first_step`
    and `first_sample` on.
    """

    rows: int
    batch_size: int
    world_size: int
    first_step: int = 0
    epoch: int = 0
    first_sample: int = 0

    def __post_init__(self) -> None:
        assert self.batch_size % self.world_size == 0, "the parts of all ranks are a batch"

    @property
    def steps(self) -> int:
        """Steps of one pass over the split."""
        return -(-self.rows // self.batch_size)

    def locate(self, step: int) -> tuple[int, int, int]:
        """Return (epoch, start, stop): the rows [start, stop) of the epoch's order that make up the step."""
        epoch, within = divmod(step - self.first_step, self.steps)
        start = within * self.batch_size
        return self.epoch + epoch, start, min(start + self.batch_size, self.rows)

    def rows_of(self, step: int, rank: int) -> tuple[int, int]:
        """Return the rows [start, stop) of the step, counted from the step's first, that belong to the rank."""
        _, first, last = self.locate(step)
        size = last - first
        per_rank = self.batch_size // self.world_size
        return min(rank * per_rank, size), min((rank + 1) * per_rank, size)

    def samples_before(self, step: int) -> int:
        """Return the number of samples in all steps before this one."""
        epoch, start, _ = self.locate(step)
        return self.first_sample + (epoch - self.epoch) * self.rows + start


def work_items(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the steps [first, last) in order, as ranges of at most `size` steps."""
    return ((step, min(step + size, last)) for step in range(first, last, size))


@dataclass(frozen=True, slots=True)
class JobBatches:
    """The batches of a job with `steps` training steps; a split without rows has no grid, evaluation is unbounded.

    Data that grows has no grids: a batch has at most `most` samples, for the last one of a portion is short.
    """

    grids: Mapping[int, StepGrid]
    steps: int
    world_size: int
    most: int | None = None

    def size(self, split: int, step: int, rank: int, given: int = 0) -> int:
        """Return the number of the rank's samples in the step; raises WireError if the job has no such batch.

        Of data that grows it is the number `given` by the message about it.
        """
        if not 0 <= rank < self.world_size:
            raise WireError(f"there is no rank {rank} in a world of {self.world_size}")
        if self.most is not None and step >= 0 and (split == EVAL or step < self.steps):
            if given > self.most:
                raise WireError(f"step {step} cannot have {given} samples of a rank, of {self.most}")
            return given
        grid = self.grids.get(split)
        if grid is None or step < 0 or (split == TRAIN and step >= self.steps):
            raise WireError(f"this job has no step {step} of the split '{SPLIT_NAMES.get(split, split)}'")
        start, stop = grid.rows_of(step, rank)
        return stop - start

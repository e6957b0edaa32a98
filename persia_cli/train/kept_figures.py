"""What a rank has counted in its last steps, in a memory file, so that metrics have neither a gap nor a double."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.train.inputs import Samples
from persia_cli.train.step import Scored, StepResult
from persia_cli.wire.message import TableTotals
from persia_cli.wire.messages import Rows

STEP, SIZE, WEIGHTED, STALENESS, IDS, UNKNOWN, SKIPPED, SERVERS, TOTALS = range(9)
"""Numbers of an entry: 1 + the step if the entry is whole, 0 otherwise; samples; whether they have weights; what the
look-up found; steps skipped in float16; embedding servers, and four numbers of each from TOTALS on."""


class CountedStep(NamedTuple):
    """One step's scores, and what its look-up found; neither has any rows."""

    samples: Samples
    scored: Scored
    rows: Rows


class KeptFigures:
    """The figures of the last `steps` steps of training, of `most` samples and `tasks` labels at the most."""

    def __init__(
        self, array: Callable[[int, DTypeLike], NDArray[Any]], steps: int, most: int, tasks: int, servers: int
    ) -> None:
        """`array` returns arrays of the memory file."""
        self._most, self._tasks = most, tasks
        self._numbers: NDArray[np.int64] = array(steps * (TOTALS + 4 * servers), np.int64).reshape(steps, -1)
        self._sums: NDArray[np.float64] = array(steps * (tasks + 2), np.float64).reshape(steps, -1)
        self._values: NDArray[np.float32] = array(steps * most * (2 * tasks + 1), np.float32).reshape(steps, -1)

    @staticmethod
    def nbytes(steps: int, most: int, tasks: int, servers: int) -> int:
        """Return the bytes of so many entries."""
        return steps * (8 * (TOTALS + 4 * servers) + 8 * (tasks + 2) + 4 * most * (2 * tasks + 1))

    @property
    def steps(self) -> int:
        """Number of steps whose figures have room."""
        return len(self._numbers)

    def put(self, step: int, samples: Samples, scored: Scored, rows: Rows) -> None:
        """Note a step's figures in the place of those of the step that was `steps` before."""
        place, size = step % self.steps, len(samples.labels)
        numbers, sums, values = self._numbers[place], self._sums[place], self._values[place]
        numbers[STEP] = 0
        scale, skipped = (scored.loss_scale, scored.steps_skipped) if isinstance(scored, StepResult) else (None, 0)
        weights = samples.weights
        totals = [number for each in rows.totals for number in (each.rows, each.evicted, each.hits, each.misses)]
        head = [size, weights is not None, rows.staleness, rows.ids, rows.unknown, skipped, len(rows.totals), *totals]
        numbers[SIZE : SIZE + len(head)] = head
        sums[:-2], sums[-2] = scored.loss_sum, np.nan if scale is None else scale
        end = size * self._tasks
        values[:end] = samples.labels.reshape(-1)
        values[end : 2 * end] = scored.logits.reshape(-1)
        if weights is not None:
            values[2 * end : 2 * end + size] = weights
        numbers[STEP] = step + 1

    def between(self, first: int, stop: int) -> Iterator[tuple[int, CountedStep]]:
        """Yield the figures of the steps [first, stop); raises LookupError for one that is not here."""
        for step in range(first, stop):
            place = step % self.steps
            if self._numbers[place, STEP] != step + 1:
                raise LookupError(step)
            yield step, self._counted(place)

    def _counted(self, place: int) -> CountedStep:
        numbers, sums = self._numbers[place].tolist(), self._sums[place]
        size, end = numbers[SIZE], numbers[SIZE] * self._tasks
        values = self._values[place].copy()
        shape = (size, self._tasks)
        weights = values[2 * end : 2 * end + size] if numbers[WEIGHTED] else None
        samples = Samples(np.empty((size, 0), np.float32), values[:end].reshape(shape), weights, ())
        scale = None if np.isnan(sums[-2]) else float(sums[-2])
        scored = StepResult(values[end : 2 * end].reshape(shape), sums[:-2].copy(), [], scale, numbers[SKIPPED])
        totals = [numbers[TOTALS + 4 * server : TOTALS + 4 * server + 4] for server in range(numbers[SERVERS])]
        of_servers = tuple(TableTotals(*each) for each in totals)
        return CountedStep(samples, scored, Rows(numbers[STALENESS], of_servers, numbers[IDS], numbers[UNKNOWN], []))

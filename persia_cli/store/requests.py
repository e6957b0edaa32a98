"""The requests of training on a server: which steps are applied, the one in progress, and the last answers.

All of it may lie in a memory file, so that a later process knows which requests are repeats, and where to continue.

- A rank's watermark only rises. Bits of applied steps are set above it only, at most LIMIT steps ahead.
- A step is applied, only looked up, or neither.
- At most one request is in progress. Its record is complete; the kind is IDLE if there is none.
- The last answer of a rank is complete, or its step is 0.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import MemoryFileError, PoisonError, WireError
from persia_cli.store.memory_file import LOAD, Memory

LIMIT = 4096
"""Steps that a window may be ahead of its watermark."""
SPAN = 2 * LIMIT
"""Bits of a rank's map: so many that a stale bit cannot mean another step."""
WORD = 64


class AppliedSteps:
    """The watermark of each rank, and a bit for each step above it that is applied, or only looked up.

    `array` returns memory that is zero at first; no step is applied then.
    """

    def __init__(self, array: Memory, ranks: int) -> None:
        self._next = array(ranks, np.int64)
        """The step after the watermark of each rank."""
        self._applied = array(ranks * SPAN // WORD, np.uint64).reshape(ranks, -1)
        self._looked_up = array(ranks * SPAN // WORD, np.uint64).reshape(ranks, -1)

    def begin(self, last_step: int) -> None:
        """Mark all steps up to `last_step` as applied, and no others."""
        self._next[:] = last_step + 1
        self._applied[:] = self._looked_up[:] = 0

    def watermark(self, rank: int) -> int:
        """Return the step up to which all updates of a rank are applied; -1 before the first."""
        return int(self._next[rank]) - 1

    @property
    def lowest(self) -> int:
        """The last step that is applied for every rank."""
        return int(self._next.min()) - 1

    def check(self, rank: int, step: int) -> None:
        """Raise WireError for a step so far ahead of the watermark that the rank cannot have permits for it."""
        if step > (watermark := self.watermark(rank)) + LIMIT:
            raise WireError(f"step {step} is more than {LIMIT} steps ahead of the last finished step {watermark}")

    def is_applied(self, rank: int, step: int) -> bool:
        """Return whether a step of a rank is applied; it must have passed `check`."""
        return bool(step < self._next[rank]) or _is_set(self._applied[rank], step)

    def mark(self, rank: int, step: int) -> None:
        """Mark a step of a rank as applied. A repeat, also after a part of it, changes nothing."""
        if step >= self._next[rank]:
            _set(self._applied[rank], step, True)
        _set(self._looked_up[rank], step, False)
        self._advance(rank)

    def mark_looked_up(self, rank: int, step: int) -> None:
        """Mark a step of a rank as looked up."""
        if step >= self._next[rank]:
            _set(self._looked_up[rank], step, True)

    def is_looked_up(self, rank: int, step: int) -> bool:
        """Return whether a step above the watermark has been looked up and not applied."""
        return bool(step >= self._next[rank]) and _is_set(self._looked_up[rank], step)

    def repair(self) -> None:
        """Complete the change of an earlier process, which raised the watermark before it cleared the step's bit."""
        for rank, step in enumerate(self._next.tolist()):
            if step > 0:
                _set(self._applied[rank], step - 1, False)
            self._advance(rank)

    def _advance(self, rank: int) -> None:
        bits = self._applied[rank]
        while _is_set(bits, int(self._next[rank])):
            self._next[rank] += 1
            _set(bits, int(self._next[rank]) - 1, False)


def _is_set(bits: NDArray[np.uint64], step: int) -> bool:
    word, bit = divmod(step % SPAN, WORD)
    return bool(int(bits[word]) >> bit & 1)


def _set(bits: NDArray[np.uint64], step: int, value: bool) -> None:
    word, bit = divmod(step % SPAN, WORD)
    bits[word] = int(bits[word]) | 1 << bit if value else int(bits[word]) & ~(1 << bit)


IDLE, LOOK_UP, UPDATE = 0, 1, 2
"""Kinds of requests; IDLE if there is none."""
KIND, STEP, DEATHS, AT_WORK = range(4)
"""Words of the record: kind and step of the request, number of processes that died at it, and 1 during work on it."""


class BatchRequest(NamedTuple):
    """A look-up of training, or an update of one rank or of several whose gradients were summed."""

    kind: int
    step: int
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        ranks = f"rank{'' if len(self.ranks) == 1 else 's'} {', '.join(map(str, self.ranks))}"
        return f"the {'look-up' if self.kind == LOOK_UP else 'update'} of step {self.step} of {ranks}"


class ProgressRecord:
    """One request in a memory file, and the counters before it; `array` returns arrays of the file.

    The request itself is not stored: its senders repeat it. `counters` are those that a request changes in passing.
    """

    def __init__(
        self,
        array: Memory,
        ranks: int,
        groups: int,
        counters: Sequence[NDArray[np.int64]],
    ) -> None:
        self._head: NDArray[np.uint64] = array(8, np.uint64)
        self._ranks: NDArray[np.uint8] = array(ranks, np.uint8)
        self._sums: NDArray[np.uint64] = array(2 * groups, np.uint64)
        self._counters = counters
        self._before: list[NDArray[np.int64]] = [array(counter.size, np.int64) for counter in counters]

    @property
    def request(self) -> BatchRequest | None:
        """The unfinished request; None if there is none."""
        if self._head[KIND] == IDLE:
            return None
        return BatchRequest(int(self._head[KIND]), int(self._head[STEP]), tuple(np.flatnonzero(self._ranks).tolist()))

    def begin(self, request: BatchRequest, keys: Iterable[NDArray[np.uint64]]) -> None:
        """Record a new request, given its keys of each group."""
        self._head[STEP], self._head[DEATHS], self._head[AT_WORK] = request.step, 0, 1
        # KIND is IDLE here, so a kill between these stores leaves no half a request.
        self._ranks[:] = 0
        self._ranks[list(request.ranks)] = 1
        self._sums[:] = _sums(keys)
        for counter, before in zip(self._counters, self._before, strict=True):
            before[:] = counter
        # Last, since a kill before this store leaves no request, and one after it leaves a complete record.
        self._head[KIND] = request.kind

    def go_on(self, keys: Iterable[NDArray[np.uint64]]) -> None:
        """Reset the counters, for the repeated request; raise MemoryFileError if it has other keys."""
        # Each position is counted again when the request continues, so the counters restart from before it.
        if (self._sums != _sums(keys)).any():
            raise MemoryFileError(f"{self.request} was repeated with other keys: {LOAD}")
        for counter, before in zip(self._counters, self._before, strict=True):
            counter[:] = before
        self._head[AT_WORK] = 1

    def before(self, counter: NDArray[np.int64]) -> int:
        """Return one of the counters before the request; it must have one element."""
        [at] = [number for number, known in enumerate(self._counters) if known is counter]
        return int(self._before[at][0])

    def end(self) -> None:
        """Record that the request is done."""
        self._head[KIND] = IDLE

    def count_death(self, max_deaths: int | None) -> None:
        """Count the process that died at the request; raise PoisonError if these are more than `max_deaths`."""
        request = self.request
        if request is None:
            return
        # Only a death during work counts: a process that died while it waited for the repeat is not to blame.
        self._head[DEATHS] += self._head[AT_WORK]
        self._head[AT_WORK] = 0
        deaths = int(self._head[DEATHS])
        if max_deaths is not None and deaths > max_deaths:
            raise PoisonError(
                f"{deaths} processes have died at the same request, {request}: that batch is poison, so the job ends"
            )


def _sums(keys: Iterable[NDArray[np.uint64]]) -> list[int]:
    """Return number and exclusive or of the keys of each group."""
    return [int(value) for part in keys for value in (part.size, np.bitwise_xor.reduce(part) if part.size else 0)]


MAX_NEW_KEYS = 1 << 27
"""Maximum number of new keys of a look-up, since a message has at most 1 GiB; the file reserves address space."""
NO_ROW_BIT = np.uint32(1 << 31)
"""Bit of a position in the file that means that the key got no row."""


class NewKeys(NamedTuple):
    """The keys of one feature group that had no row before a look-up, as ascending positions among its keys."""

    positions: NDArray[np.uint32]
    rowless: NDArray[np.uint32]
    """Those of `positions` that got no row by it either: they were answered with zeros."""


Answer = tuple[NDArray[np.uint8], NewKeys]
"""Encoded embeddings of the keys of a feature group, zeros for those without a row, and the new keys."""


def answers_as_before(answers: list[Answer], before: Sequence[NewKeys]) -> list[Answer]:
    """Return the first answers to a repeated look-up, given its new keys at the first time.

    Keys that got a row then are still new, and keys that got none read as zeros, although the look-up of another rank
    may have given them a row since. Embeddings are changed in place.
    """
    for (rows, _), new in zip(answers, before, strict=True):
        rows[new.rowless] = 0
    return [(rows, new) for (rows, _), new in zip(answers, before, strict=True)]


class LastAnswers:
    """The new keys of each rank's last look-up of training; kernels write them there during the look-up.

    Only a later process asks for them, so memory that does not outlive this one has no space for positions.
    """

    def __init__(self, array: Memory, ranks: int, groups: int, outlives: bool) -> None:
        self._next = array(ranks, np.int64)
        """The step after that of the look-up; 0 if there is none, or while it is carried out."""
        self._sizes: NDArray[np.int64] = array(ranks * groups, np.int64).reshape(ranks, groups)
        most = MAX_NEW_KEYS if outlives else 0
        self.positions: NDArray[np.uint32] = array(ranks * most, np.uint32).reshape(ranks, most)

    def begin(self, rank: int) -> None:
        """Clear the rank's last look-up: another one begins."""
        self._next[rank] = 0

    def space(self, rank: int, group: int, keys: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return memory for positions of new keys of a group, uint32[keys], and for their number, int64[1].

        Those of all groups before must be written; all groups together have at most MAX_NEW_KEYS keys.
        """
        start = int(self._sizes[rank, :group].sum())
        return self.positions[rank, start : start + keys], self._sizes[rank, group : group + 1]

    def end(self, rank: int, step: int) -> None:
        """Mark the rank's look-up of a step as done."""
        self._next[rank] = step + 1

    def new_keys(self, rank: int, group: int) -> NewKeys:
        """Return the new keys of a group of the rank's last look-up."""
        start, size = int(self._sizes[rank, :group].sum()), int(self._sizes[rank, group])
        marked = self.positions[rank, start : start + size].copy()
        return NewKeys(marked & ~NO_ROW_BIT, marked[marked >= NO_ROW_BIT] & ~NO_ROW_BIT)

    def last(self, rank: int) -> tuple[int, list[NewKeys]] | None:
        """Return the step and the new keys of the rank's last look-up, by group; None if they are incomplete."""
        step = int(self._next[rank]) - 1
        return None if step < 0 else (step, [self.new_keys(rank, group) for group in range(self._sizes.shape[1])])


def address_space(ranks: int, groups: int) -> int:
    """Return the bytes of a memory file that `LastAnswers` needs, without alignment."""
    return ranks * (8 + 8 * groups + 4 * MAX_NEW_KEYS)

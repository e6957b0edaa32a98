"""The journal of a shard in a memory file: the present action of a kernel, so that a later process can repair it.

A process that is killed leaves its memory as its last instruction left it: every store before that one, in the order of
the machine code, is there, and none after it. No cache needs to be flushed for that, and only the compiler can change
the order. So a kernel writes down each step that changes more than one word, then `publish` stores one word that makes
the entry valid, and then it does the step. Two entries alternate, so that the next one can be written while the last
one is valid.

- Undo: an update logs the row that it will change, and its old content. A repair writes that back.
- Redo: a look-up logs all stores that give a new key its row: the keys that move, the counts, the row. A repair
  repeats them.

Look-ups always write entries, by which they give a new key its row. Updates write them only if `KernelJournal.rows` has
space, in a memory file: they would cost up to a quarter of an update.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.rows.rows import LANES, ZERO
from persia_cli.kernels.toolchain.compile import helper, inlined, write
from persia_cli.kernels.toolchain.intrinsics import ARRAY, I64, address, instruction
from persia_cli.kernels.toolchain.simd import load, store

U64, F32 = types.uint64, types.float32
PROGRESS = np.uint64(0)
"""The word of `KernelJournal.words` of the work in progress: flags | group << GROUP | position in the request."""
UNDO = np.uint64(1)
"""The first of two alternating words of `KernelJournal.words`: the position in the arena of the logged row."""
IDLE = np.uint64(1 << 63)
"""Flag: all positions before this one are done, this one has not begun, and no entry is valid."""
ADDING = np.uint64(1 << 62)
"""Flag: a look-up has found all known keys, and gives rows to new ones; positions are those among the new ones."""
GROUP = np.uint64(40)
"""Lowest bit of the number of the feature group."""
ENTRY_WORDS = np.uint64(128)
"""Words of the entry of an insert: those of `Entry`, then three for each slot that is written."""
WORDS_OF_SLOT = np.uint64(3)
"""Slot, key, and row + 1 | step of last use << 32."""
NONE = np.uint64(2**64 - 1)
FOUR = np.uint64(4)
"""float32 words to a multiple of which rows are padded."""


class Entry(NamedTuple):
    """The parts of the entry of an insert: as values of `ENTRY`, their first words."""

    writes: np.uint64
    """Number of slots that are written."""
    key: np.uint64
    table: np.uint64
    row: np.uint64
    """The row that the key gets, NONE for none."""
    fill: np.uint64
    """Rows of the key's partition after it."""
    outcome: np.uint64
    counter: np.uint64
    """The new value of the counter of that outcome."""
    loser: np.uint64
    """Table of the evicted row, NONE without one."""
    loser_key: np.uint64
    """The key that loses its row; only with a cold log."""
    evicted: np.uint64
    """The loser's new count of evicted rows."""
    expired: np.uint64
    """The loser's new count of expired rows."""
    uses: np.uint64
    """The row's word of `Index.uses`."""
    line: np.uint64
    """Begin of the key's line of the sketch, NONE for no change."""
    line_words: np.uint64
    """The eight words of that line."""
    logged: np.uint64
    """Records in the buffer of the cold log, with that of the evicted row; NONE without one."""
    slots: np.uint64
    """The slots that are written; see WORDS_OF_SLOT."""


SIZES = [8 if part == "line_words" else 1 for part in Entry._fields]
ENTRY = Entry(*(np.uint64(sum(SIZES[:at])) for at in range(len(SIZES))))


class KernelJournal(NamedTuple):
    """The journal of one feature group on one server, as arrays of its memory file."""

    words: NDArray[np.uint64]
    """uint64[3] or more, shared by all groups of the shard; see PROGRESS and UNDO."""
    rows: NDArray[np.float32]
    """float32[2 * words of a row, rounded up to 16]: the old content of the changed row, alternating. It is empty if
    no process could restore it; then updates log nothing."""
    entries: NDArray[np.uint64]
    """uint64[2 * ENTRY_WORDS], shared by all groups: the entries of new keys, alternating."""
    group: np.uint64
    """Number of the group << GROUP."""


JOURNAL = types.NamedTuple((write(U64), write(F32), write(U64), U64), KernelJournal)


class KernelProgress(NamedTuple):
    """The work in progress, decoded from the word of a journal."""

    idle: bool
    """True if no entry is valid."""
    adding: bool
    """True if a look-up was giving rows to new keys."""
    group: int
    position: int

    @classmethod
    def of(cls, word: int) -> "KernelProgress":
        """Decode a word."""
        shift = int(GROUP)
        group = (word & ~int(IDLE | ADDING)) >> shift
        return cls(bool(word & int(IDLE)), bool(word & int(ADDING)), group, word & ((1 << shift) - 1))


def whole_lines(width: int) -> int:
    """Return the words of a row, rounded up to whole cache lines."""
    return -(-width // 16) * 16


@instruction(types.void, ARRAY, U64, U64)
def publish(builder, words, at, value):
    """Write words[at], after all earlier stores and before all later ones, also if this process is interrupted."""
    # A release store keeps earlier stores before it, but the compiler may move later ones before it. The fence, which
    # emits no instruction, forbids that.
    builder.store_atomic(value, address(builder, words, at, I64), "release", 8)
    builder.fence("acq_rel", "singlethread")


@instruction(types.void, ARRAY, U64, ARRAY, U64)
def copy_four(builder, source, at, target, to):
    """Copy four float32 from source[at] to target[to]."""
    four = ir.VectorType(ir.FloatType(), 4)
    value = builder.load(address(builder, source, at, four))
    value.align = 4
    builder.store(value, address(builder, target, to, four)).align = 4


@inlined
def _copy_line(source, at, target, to):
    """Copy sixteen float32."""
    store(target, to, load(source, at, 16), 16)


@inlined
def log_undo(journal, rows, at, position):
    """Log the content of the row that starts at word `at` before the update at a position changes it."""
    turn = position & np.uint64(1)
    to = turn * (np.uint64(journal.rows.size) >> np.uint64(1))
    journal.words[UNDO + turn] = at
    if rows.width == LANES + FOUR or (rows.width <= LANES * np.uint64(3) and rows.width % LANES == ZERO):
        # The common rows of dim 16, for which a loop would take longer than its body.
        _copy_line(rows.arena, at, journal.rows, to)
        if rows.width >= LANES * np.uint64(2):
            _copy_line(rows.arena, at + LANES, journal.rows, to + LANES)
        if rows.width == LANES * np.uint64(3):
            _copy_line(rows.arena, at + LANES * np.uint64(2), journal.rows, to + LANES * np.uint64(2))
        if rows.width == LANES + FOUR:
            copy_four(rows.arena, at + LANES, journal.rows, to + LANES)
    else:
        whole = rows.width & ~(LANES - np.uint64(1))
        for word in range(ZERO, whole, LANES):
            _copy_line(rows.arena, at + word, journal.rows, to + word)
        # Sixteen lanes would reach into a cache line behind the row, which was not prefetched.
        for word in range(whole, rows.width, FOUR):
            copy_four(rows.arena, at + word, journal.rows, to + word)
    publish(journal.words, PROGRESS, journal.group | position)


@inlined
def record_skip(journal, position, flags):
    """Record that nothing changes at a position."""
    # Entries alternate by position: without this word, the next entry but one would overwrite the valid one.
    publish(journal.words, PROGRESS, IDLE | flags | journal.group | (position + np.uint64(1)))


@inlined
def entry_at(position):
    """Return the first word of the entry of the new key at a position."""
    return (position & np.uint64(1)) * ENTRY_WORDS


@inlined
def content_at(journal, base):
    """Return the position in `KernelJournal.rows` of the row that belongs to the entry that begins at word `base`."""
    return (np.uint64(journal.rows.size) >> np.uint64(1)) * np.uint64(base != ZERO)


@helper
def log_slot(entries, base, slot, key, mark, last_used):
    """Add the store of a slot to the entry that begins at word `base`."""
    at = base + ENTRY.slots + WORDS_OF_SLOT * entries[base + ENTRY.writes]
    entries[at] = slot
    entries[at + np.uint64(1)] = key
    entries[at + np.uint64(2)] = np.uint64(mark) | (np.uint64(last_used) << np.uint64(32))
    entries[base + ENTRY.writes] += np.uint64(1)

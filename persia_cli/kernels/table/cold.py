"""The log of rows that left memory for a disk: its buffer, its index, and reads of its blocks.

Rows are appended as *records* to a buffer in memory, block by block; full blocks go to files of segments. A record is
six words (key, step of last use, word of `Index.uses`, table number, unused) and the row's words of the arena. A block
begins with four words: its checksum, then its sequence number << 8 | its number of records. So a file alone shows which
record of a key is the newest.

Record r is record r % per_segment of the segment r // per_segment; the buffer continues the open segment. The index is
a hash table with linear probing from keys to records. It belongs to the process; `rebuild` makes it again from the
files. A record is *live* while it is in the index. A row in memory has no live record.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.rows.rows import ROWS, ZERO, copy_words, send_row
from persia_cli.kernels.table.buckets import INDEX, NOWHERE, first_bucket, last_used_word, slot_of
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import read_file
from persia_cli.kernels.toolchain.needs import COLD_ROWS

F32, U16, U32, U64, I64 = types.float32, types.uint16, types.uint32, types.uint64, types.int64
BLOCK_HEAD, RECORD_HEAD = np.uint64(4), np.uint64(6)
"""Words of a block before its first record, and of a record before its row."""
LAST_USED, USES, TABLE = np.uint64(2), np.uint64(3), np.uint64(4)
"""Words of a record's head behind its key."""
COUNT_BITS = np.uint64(8)
"""Lowest bits of a block's second uint64, with its number of records."""
ONE, TWO, SIX = np.uint64(1), np.uint64(2), np.uint64(6)
SIXTY_THREE = np.uint64(63)
CANNOT_READ, DAMAGED = -1, -2
"""Results of `read_records`: the system reports an error, or a block is not what was written."""


class ColdLog(NamedTuple):
    """The log of one feature group on one server, as arrays for kernels; all arrays are empty if there is none."""

    words: NDArray[np.float32]
    """float32[blocks * block_words]: the buffer; `marks` (uint32) and `longs` (uint64) are the same memory."""
    marks: NDArray[np.uint32]
    longs: NDArray[np.uint64]
    filled: NDArray[np.int64]
    """int64[1]: number of records in the buffer; it lasts longer than the process, as the buffer does."""
    buffer_first: NDArray[np.int64]
    """int64[1]: the buffer's first record."""
    buffer_space: NDArray[np.int64]
    """int64[1]: number of records for which the buffer has space."""
    keys: NDArray[np.uint64]
    """uint64[slots]: the index's keys."""
    records: NDArray[np.uint32]
    """uint32[slots]: record + 1 of each key, 0 for an empty slot."""
    live: NDArray[np.uint64]
    """uint64[records / 64, rounded up]: a bit for each live record."""
    of_segment: NDArray[np.int64]
    """int64[segments]: live records of each."""
    width: np.uint64
    """Words of a row in the arena."""
    per_block: np.uint64
    """Records of a full block."""
    block_words: np.uint64
    per_segment: np.uint64
    """Records of a full segment."""


COLD = types.NamedTuple(
    (
        write(F32), write(U32), write(U64), write(I64), write(I64), write(I64), write(U64), write(U32), write(U64),
        write(I64), U64, U64, U64, U64,
    ),
    ColdLog,
)  # fmt: skip


def no_log() -> ColdLog:
    """Return the log of a store whose rows never leave memory for a disk."""
    longs, counts, none = np.empty(0, np.uint64), np.empty(0, np.int64), np.uint64(0)
    words, marks = np.empty(0, np.float32), np.empty(0, np.uint32)
    return ColdLog(words, marks, longs, counts, counts, counts, longs, marks, longs, counts, none, none, none, none)


@inlined
def is_full(cold):
    """Return whether there is a log whose buffer has no space for another record."""
    return cold.filled.size > 0 and cold.filled[0] >= cold.buffer_space[0]


@inlined
def _record_at(cold, position):
    """Return the first word of a record of the buffer."""
    block = position // cold.per_block
    return block * cold.block_words + BLOCK_HEAD + (position - block * cold.per_block) * (RECORD_HEAD + cold.width)


@helper
def copy_to_log(cold, position, index, slot, row, rows):
    """Write the row of a slot of the index to a place of the buffer, which does not count yet."""
    at = _record_at(cold, np.uint64(position))
    key = index.buckets[(slot >> TWO) * np.uint64(8) + (slot & np.uint64(3))]
    _write_head(cold, at, key, index.marks[last_used_word(slot)], index.tables[row])
    cold.marks[at + USES] = index.uses[row] if index.uses.size else np.uint32(0)
    copy_words(rows.arena, np.uint64(row) * rows.width, cold.words, at + RECORD_HEAD, rows.width)


@inlined
def _write_head(cold, at, key, last_used, table):
    cold.longs[at >> ONE] = key
    cold.marks[at + LAST_USED] = last_used
    cold.marks[at + TABLE] = np.uint32(table)
    cold.marks[at + TABLE + ONE] = np.uint32(0)


# The index


@inlined
def _home(cold, key):
    """Return the first slot in which a key may be."""
    return ((key & np.uint64(2**32 - 1)) * np.uint64(cold.keys.size)) >> np.uint64(32)


@inlined
def _after(cold, slot):
    return ZERO if slot + ONE == np.uint64(cold.keys.size) else slot + ONE


@helper
def add_to_index(cold, key, position):
    """Make the buffer's record at a place the live one of its key."""
    _add(cold, key, np.uint64(cold.buffer_first[0] + position))


@helper
def _add(cold, key, record):
    """Make a record the live one of its key; return its slot."""
    slot = _home(cold, key)
    while cold.records[slot] != 0:
        slot = _after(cold, slot)
    cold.keys[slot] = key
    cold.records[slot] = np.uint32(record + ONE)
    cold.live[record >> SIX] |= ONE << (record & SIXTY_THREE)
    cold.of_segment[record // cold.per_segment] += 1
    return slot


@helper
def remove_from_index(cold, key, record):
    """End the life of a record."""
    hole = _home(cold, key)
    while cold.records[hole] != np.uint32(record + ONE):
        hole = _after(cold, hole)
    cold.live[record >> SIX] &= ~(ONE << (record & SIXTY_THREE))
    cold.of_segment[record // cold.per_segment] -= 1
    # Keys behind the hole move into it, unless they would be before their first slot (Knuth, vol. 3, 6.4, algorithm R).
    slot, size = _after(cold, hole), np.uint64(cold.keys.size)
    while cold.records[slot] != 0:
        home = _home(cold, cold.keys[slot])
        from_home = slot - home if slot >= home else slot + size - home
        from_hole = slot - hole if slot >= hole else slot + size - hole
        if from_home >= from_hole:
            cold.keys[hole], cold.records[hole] = cold.keys[slot], cold.records[slot]
            hole = slot
        slot = _after(cold, slot)
    cold.records[hole] = np.uint32(0)


@kernel(types.int64(COLD, read(U64), write(I64), write(I64)), for_=COLD_ROWS)
def find_records(cold, keys, positions, records):
    """List each live record of each key, and the key's place; return their number, at most the size of `positions`.

    Keys of several tables may be equal, so a record need not be of the wanted table.
    """
    count = ZERO
    for i in range(np.uint64(keys.size)):
        slot = _home(cold, keys[i])
        while cold.records[slot] != 0:
            if cold.keys[slot] == keys[i] and count < np.uint64(positions.size):
                positions[count], records[count] = i, np.int64(cold.records[slot]) - 1
                count += ONE
            slot = _after(cold, slot)
    return np.int64(count)


# Blocks


@inlined
def _checksum(longs, start, size):
    """Return a checksum of a block of `size` uint64 that begins at `start`, without the place for the checksum."""
    one, two = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
    for at in range(start + TWO, start + size, TWO):
        one = (one ^ longs[at]) * np.uint64(0xBF58476D1CE4E5B9)
        one ^= one >> np.uint64(29)
        two = (two ^ longs[at + ONE]) * np.uint64(0x94D049BB133111EB)
        two ^= two >> np.uint64(31)
    return (one ^ (two << ONE)) * np.uint64(0xBF58476D1CE4E5B9) ^ longs[start + ONE]


@kernel(types.void(COLD, U64), for_=COLD_ROWS)
def end_blocks(cold, sequence):
    """Write the heads of the buffer's blocks, the first of which has this sequence number."""
    left, size = np.uint64(cold.filled[0]), cold.block_words >> ONE
    start = ZERO
    while left > ZERO:
        records = min(left, cold.per_block)
        cold.longs[start + ONE] = (sequence << COUNT_BITS) | records
        cold.longs[start] = _checksum(cold.longs, start, size)
        left -= records
        sequence += ONE
        start += size


@kernel(types.int64(read(U64), U64), for_=COLD_ROWS)
def damaged_block(longs, block_words):
    """Return the position of the first of some blocks whose checksum is wrong, -1 if there is none."""
    size = block_words >> ONE
    for block in range(np.uint64(longs.size) // size):
        if longs[block * size] != _checksum(longs, block * size, size):
            return np.int64(block)
    return np.int64(-1)


@kernel(types.int64(COLD, read(types.int32), read(I64), I64, I64, write(U64), read(F32), write(F32)), for_=COLD_ROWS)
def read_records(cold, files, records, first, last, scratch, words, out):
    """Read the records [first, last) of an ascending list into `out`, float32[n * words of a record], by position.

    `files` are the segments' descriptors. `scratch` has space for one block, aligned to a page, and `words` is the same
    memory. Records of the buffer are copied from there. Return 0, CANNOT_READ or DAMAGED.
    """
    size, present = RECORD_HEAD + cold.width, NOWHERE
    buffered = cold.buffer_first[0]
    for i in range(np.uint64(first), np.uint64(last)):
        record = records[i]
        if buffered <= record < buffered + cold.filled[0]:
            copy_words(cold.words, _record_at(cold, np.uint64(record - buffered)), out, i * size, size)
            continue
        segment = np.uint64(record) // cold.per_segment
        in_segment = np.uint64(record) - segment * cold.per_segment
        block = in_segment // cold.per_block
        in_block = in_segment - block * cold.per_block
        if present != np.uint64(record) - in_block:
            nbytes = cold.block_words * np.uint64(4)
            if read_file(files[segment], scratch, ZERO, nbytes, np.int64(block * nbytes)) != np.int64(nbytes):
                return CANNOT_READ
            if scratch[0] != _checksum(scratch, ZERO, cold.block_words >> ONE):
                return DAMAGED
            present = np.uint64(record) - in_block
        if in_block >= scratch[1] & np.uint64(2**8 - 1):
            return DAMAGED
        copy_words(words, BLOCK_HEAD + in_block * size, out, i * size, size)
    return 0


@kernel(types.int64(COLD, read(U64), read(U16), read(U32), read(U32), read(F32), I64), for_=COLD_ROWS)
def append_rows(cold, keys, tables, last_used, uses, words, first):
    """Append rows from position `first` on; return the position at which the buffer was full, or their number."""
    for i in range(np.uint64(first), np.uint64(keys.size)):
        if is_full(cold):
            return np.int64(i)
        position = cold.filled[0]
        at = _record_at(cold, np.uint64(position))
        _write_head(cold, at, keys[i], last_used[i], tables[i])
        cold.marks[at + USES] = uses[i]
        copy_words(words, i * cold.width, cold.words, at + RECORD_HEAD, cold.width)
        cold.filled[0] = position + 1
        add_to_index(cold, keys[i], position)
    return np.int64(keys.size)


@kernel(types.int64(COLD, read(F32), read(U32), read(U64), I64, I64, types.boolean, write(I64)), for_=COLD_ROWS)
def move_records(cold, words, marks, longs, first_record, first, drop, dropped):
    """Append the live records of some blocks of a segment again, from position `first` on, or `drop` them.

    `words`, `marks` and `longs` are the same memory. Return the position at which the buffer was full, or the number of
    records that blocks may have. `dropped`, int64[tables], counts dropped records.
    """
    size = RECORD_HEAD + cold.width
    records = (np.uint64(words.size) // cold.block_words) * cold.per_block
    for i in range(np.uint64(first), records):
        record = np.uint64(first_record) + i
        if (cold.live[record >> SIX] >> (record & SIXTY_THREE)) & ONE == ZERO:
            continue
        if not drop and is_full(cold):
            return np.int64(i)
        at = _record_at(cold, i)
        key = longs[at >> ONE]
        remove_from_index(cold, key, record)
        if drop:
            dropped[marks[at + TABLE]] += 1
        else:
            position = cold.filled[0]
            copy_words(words, at, cold.words, _record_at(cold, np.uint64(position)), size)
            cold.filled[0] = position + 1
            add_to_index(cold, key, position)
    return np.int64(records)


@kernel(types.void(COLD, INDEX, read(U32), read(U64), I64, I64, write(U16)), for_=COLD_ROWS)
def rebuild(cold, index, marks, longs, first_record, count, tables):
    """Add records to an index that is made again, unless their row is in memory or a newer one is in the index.

    Newer records must have been added before. `marks` and `longs` are some blocks. `count` is the number of records in
    them, or -1 if their heads have it. `tables`, uint16[slots], are those of the records in the index.
    """
    blocks = np.uint64(marks.size) // cold.block_words
    for b in range(blocks):
        block = blocks - ONE - b
        start = block * cold.per_block
        in_block = longs[block * (cold.block_words >> ONE) + ONE] & np.uint64(2**8 - 1)
        if count >= 0:
            in_block = np.uint64(max(np.int64(0), min(np.int64(cold.per_block), count - np.int64(start))))
        for i in range(in_block):
            position = start + in_block - ONE - i
            at = _record_at(cold, position)
            key, table = longs[at >> ONE], np.uint16(marks[at + TABLE])
            if slot_of(index, key, table, first_bucket(index, key)) == NOWHERE and not _is_known(
                cold, key, table, tables
            ):
                tables[_add(cold, key, np.uint64(first_record) + position)] = table


@helper
def _is_known(cold, key, table, tables):
    slot = _home(cold, key)
    while cold.records[slot] != 0:
        if cold.keys[slot] == key and tables[slot] == table:
            return True
        slot = _after(cold, slot)
    return False


@kernel(types.void(ROWS, read(I64), read(I64), I64, write(U16)), for_=COLD_ROWS)
def send_records(staged, sources, targets, wire, out):
    """Send the rows `sources` of an arena of records as rows `targets` of `out`; see `rows.send_row`."""
    for i in range(np.uint64(sources.size)):
        send_row(staged, sources[i], out, np.uint64(targets[i]), wire)

"""The frequency of look-ups: of an id with a row in a word of that row, of others in a sketch.

The sketch is a count-min sketch with conservative updates (C. Estan, G. Varghese, "New directions in traffic
measurement and accounting", 2002), used as in TinyLFU (G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient
cache admission policy", 2017). A line of it is a cache line: an epoch (uint64), then 56 counters of 8 bits, of which an
id has four. The lines are in the order of keys, as partitions are, so each partition has separate lines.

Counts are halved at the end of each epoch, which is 2^epoch_bits steps. Each count has its epoch, and a reader halves
it once for each epoch since. So counts are a pure function of the look-ups and their steps, and no pass over all counts
is needed.

For eviction alone, nothing is counted before a partition is nearly full: until then every id gets a row.
"""

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.rows.hashing import mix
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch
from persia_cli.kernels.toolchain.needs import SAVING

WORDS = np.uint64(8)
"""uint64 words of a line: its epoch, then the counters."""
COUNTERS = np.uint64(14)
"""Counters of a line for each of the four of an id."""
MOST = np.uint64(255)
"""Maximum count."""
STEP = np.uint64(2**24 - 1)
"""Bits of a row's word with the step of its last look-up, modulo 2^24; the 8 bits above are its count."""
LATER = np.uint64(2**23)
"""Difference of steps modulo 2^24 from which on the row was looked up in a later step."""
ONES = np.uint64(0x0101010101010101)


def words_of(counts: NDArray[np.uint8], steps: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the words of rows with these counts and last steps of look-ups."""
    return (counts.astype(np.uint32) << np.uint32(24)) | (steps.astype(np.uint64) & STEP).astype(np.uint32)


@inlined
def halved(counts, times):
    """Return eight counters of 8 bits, each halved so many times."""
    if times >= np.uint64(8):
        return np.uint64(0)
    return (counts >> times) & (ONES * (MOST >> times))


@inlined
def _since(index, row, step):
    """Return the steps since a row was looked up, 0 if it was in this step or a later one."""
    steps = (step - np.uint64(index.uses[row])) & STEP
    return np.uint64(0) if steps >= LATER else min(steps, step)


@helper
def frequency(index, row, step):
    """Return the frequency of a row's id, halved for each epoch that has ended since."""
    step = np.uint64(step)
    since = _since(index, row, step)
    epochs = (step >> index.epoch_bits) - ((step - since) >> index.epoch_bits)
    count = np.uint64(index.uses[row]) >> np.uint64(24)
    return np.uint64(0) if epochs >= np.uint64(8) else count >> epochs


@kernel(types.void(read(types.uint32), read(types.uint32), types.int64, write(types.uint8)), for_=SAVING)
def count_at_last_use(words, last_used, epoch_bits, counts):
    """Write the frequencies of rows at their last use: halved for each epoch from the step in their word to that.

    The count of a row may be of an earlier step: until the partition is nearly full, look-ups are not counted.
    """
    for i in range(np.uint64(0), np.uint64(words.size)):
        last, word = np.uint64(last_used[i]), np.uint64(words[i])
        since = (last - word) & STEP
        since = np.uint64(0) if since >= LATER else min(since, last)
        epochs = (last >> np.uint64(epoch_bits)) - ((last - since) >> np.uint64(epoch_bits))
        counts[i] = np.uint8((word >> np.uint64(24)) >> min(epochs, np.uint64(8)))


@kernel(types.int64(*[read(types.uint64)] + [write(types.uint64)] * 3), for_=SAVING)
def used_lines(sketch, numbers, epochs, counts):
    """Copy the lines with counts of a part of a sketch: place, epoch and counters; return their number.

    The arrays have space for all lines and one more: uint64[n], uint64[n] and uint64[7 * n].
    """
    count = np.uint64(0)
    for line in range(np.uint64(0), np.uint64(sketch.size) // WORDS):
        any_ = np.uint64(0)
        numbers[count], epochs[count] = line, sketch[line * WORDS]
        for word in range(np.uint64(1), WORDS):
            value = sketch[line * WORDS + word]
            counts[count * (WORDS - np.uint64(1)) + word - np.uint64(1)] = value
            any_ |= value
        # Written before the test: a mispredicted branch takes longer.
        count += np.uint64(any_ != np.uint64(0))
    return count


@inlined
def word_of(count, step):
    """Return the word of a row with this count, looked up in this step."""
    return np.uint32((np.uint64(count) << np.uint64(24)) | (np.uint64(step) & STEP))


@inlined
def count_use(index, row, step):
    """Count the look-up of a row, once in a step: a repeat, as after a kill, changes nothing."""
    word, now = np.uint64(index.uses[row]), np.uint64(step)
    steps = (now - word) & STEP
    if steps != np.uint64(0) and steps < LATER:
        epochs = (now >> index.epoch_bits) - ((now - min(steps, now)) >> index.epoch_bits)
        count = (word >> np.uint64(24)) >> min(epochs, np.uint64(8))
        index.uses[row] = np.uint32((min(count + np.uint64(1), MOST) << np.uint64(24)) | (now & STEP))


@inlined
def is_counted(fill, capacity):
    """Return whether look-ups count in a partition with `fill` of `capacity` rows: if it is seven eighths full."""
    return 8 * np.int64(fill) >= 7 * capacity


@inlined
def line_of(index, key):
    """Return the first word of a key's line."""
    line = ((key >> np.uint64(32)) * (index.partitions * index.lines)) >> np.uint64(32)
    return (line - index.first * index.lines) * WORDS


@inlined
def prefetch_line(index, key):
    """Prefetch a key's line."""
    prefetch(index.sketch, line_of(index, key))


@inlined
def _counter(spread, quarter):
    """Return the place in a line, from 0 on, of one of the four counters of an id, given its mixed key."""
    part = (spread >> np.uint64(16 * quarter)) & np.uint64(0xFFFF)
    return np.uint64(quarter) * COUNTERS + ((part * COUNTERS) >> np.uint64(16))


@helper
def count_without_row(index, key, step, target, to):
    """Count the look-up of a key without a row; return its frequency, the present look-up included.

    The key's line after that is written to words target[to:to + 8]: to its own place, or to an entry.
    """
    at, epoch = line_of(index, key), np.uint64(step) >> index.epoch_bits
    before = index.sketch[at]
    times = epoch - before if epoch > before else np.uint64(0)
    target[to] = max(before, epoch)
    for word in range(np.uint64(1), WORDS):
        target[to + word] = halved(index.sketch[at + word], times)
    spread, lowest = mix(key), MOST
    for quarter in range(4):
        counter = _counter(spread, quarter)
        word, shift = to + np.uint64(1) + (counter >> np.uint64(3)), np.uint64(8) * (counter & np.uint64(7))
        lowest = min(lowest, (target[word] >> shift) & MOST)
    if lowest == MOST:
        return MOST
    for quarter in range(4):
        counter = _counter(spread, quarter)
        word, shift = to + np.uint64(1) + (counter >> np.uint64(3)), np.uint64(8) * (counter & np.uint64(7))
        if (target[word] >> shift) & MOST == lowest:
            target[word] += np.uint64(1) << shift
    return lowest + np.uint64(1)

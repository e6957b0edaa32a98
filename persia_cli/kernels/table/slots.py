"""Slots for new keys: an empty slot, one freed by moving keys, or the slot of an evicted row.

A partition never has more rows than its capacity, even if slots are empty.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.table.buckets import (
    FEW,
    INDEX,
    KEYS,
    LAST_USED,
    MARKS,
    NOWHERE,
    PATHS,
    ROWS,
    SLOTS,
    first_bucket,
    last_used_word,
    partition_of,
    row_at,
    row_word,
    second_bucket,
    slot_of,
    taken,
)
from persia_cli.kernels.table.frequency import frequency
from persia_cli.kernels.table.journal import note_slot
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import bits_set, lowest_bit, prefetch

U16, U32, U64, I64 = types.uint16, types.uint32, types.uint64, types.int64
AHEAD = np.uint64(16)
"""Number of keys ahead whose first bucket is prefetched while rows are inserted."""
REPEATED = -2
"""Result, instead of a row, for a key that has a row already."""
REFUSE, EVICT_LRU, EVICT_LFU = 0, 1, 2
"""Policies for a new key in a full partition: it gets no row; it evicts the least recently used row; it evicts the
least frequently used row if that was looked up less often than the new key."""


class EvictionRules(NamedTuple):
    """The rules by which rows are evicted."""

    capacity: int
    """Capacity of a partition in rows."""
    policy: int
    """REFUSE, EVICT_LRU or EVICT_LFU."""
    expires: int
    """A row may be evicted by any new key if it was last used more than so many steps ago; 0 for never."""


MAX_PRIORITY = np.uint64(2**64 - 1)
"""A priority above all others."""
MOST_RETURNS = 16
"""Maximum number of keys that return to their first buckets so that a slot may be empty."""
VISITED = np.uint64(2**64 - 2)
TWO = np.uint64(2)
ALWAYS = np.uint64(2**32)
"""A number of look-ups with which a key gets a row if any row was not used in this step."""
EVICTION_RULES = types.NamedUniTuple(I64, 3, EvictionRules)


class LoadCounts(NamedTuple):
    """Counts of the rows of checkpoints; each is int64[tables], by table number."""

    loaded: NDArray[np.int64]
    """Keys that got a row and were not evicted."""
    left_out: NDArray[np.int64]
    """Keys that got no row, or were evicted by later ones."""


LOAD_COUNTS = types.NamedUniTuple(write(I64), 2, LoadCounts)


@inlined
def key_at(index, slot):
    """Return the key of a slot."""
    return index.buckets[(slot >> np.uint64(2)) * KEYS + (slot & np.uint64(3))]


@inlined
def put(index, slot, key, mark, last_used):
    """Write a slot: its key, its row + 1 (0 to empty it), and its step of last use."""
    bucket, place = slot >> np.uint64(2), slot & np.uint64(3)
    index.buckets[bucket * KEYS + place] = key
    index.marks[bucket * MARKS + ROWS + place] = mark
    index.marks[bucket * MARKS + LAST_USED + place] = last_used


@helper
def _move(note, index, source, target):
    """Copy the content of a slot to another slot, or only note that; `note` is a journal and a word of it, or None."""
    key, mark, last_used = key_at(index, source), index.marks[row_word(source)], index.marks[last_used_word(source)]
    if note is None:
        put(index, target, key, mark, last_used)
    else:
        note_slot(note[0], note[1], target, key, mark, last_used)


@helper
def _shift(note, index, one, other, evicts, step, rules):
    """Free a slot of two full buckets by moving keys to their other candidates (cuckoo moves); NOWHERE if it fails.

    The last key moves to an empty slot. If `evicts`, it moves to that of a key last used before `step`, which is the
    second value. The freed slot still has its moved content, for the caller to overwrite. With a
    note, nothing moves yet.
    """
    # Each of the eight keys in the two full buckets could move to exactly one other bucket, the four keys of that one
    # to four others, and so on: a tree of buckets. The first of them with an empty slot ends the shortest path. A
    # random walk, which is simpler, moves more keys and may not end.
    # Nothing moves before a path to an empty slot is found, so a search that fails leaves the index as it was.
    # `scratch` is the queue of a search in breadth, two words an entry: the entry and slot whose key would move here
    # (parent << 2 | slot), then the bucket.
    paths = index.scratch
    paths[1], paths[3] = one, other
    known = np.uint64(2)
    at = np.uint64(0)
    while at < known:
        bucket = paths[np.uint64(2) * at + np.uint64(1)]
        for place in range(np.uint64(SLOTS)):
            slot = bucket * np.uint64(SLOTS) + place
            key = index.buckets[bucket * KEYS + place]
            home = first_bucket(index, key)
            away = second_bucket(index, key, home) if home == bucket else home
            # The bucket that a key leaves stays full, as `buckets` requires: the next key of the path, or finally the
            # new key, takes the slot.
            loser, is_whole = NOWHERE, taken(index, away) == np.uint64(15)
            if evicts:
                loser, _ = _least_used_in(index, away, step, rules, MAX_PRIORITY)
            if loser != NOWHERE or not (evicts or is_whole):
                # Move keys from the end of the path back to its start: each one goes to the slot that was just left, so
                # at every moment each key is in the index. No bucket is on the path twice, since a search in breadth
                # finds the path without the detour first. So noted moves may all read the state before the first move.
                _move(note, index, slot, _empty_slot(index, away, away) if loser == NOWHERE else loser)
                while at >= np.uint64(2):
                    parent = paths[np.uint64(2) * at]
                    at, target = parent >> np.uint64(2), slot
                    bucket = paths[np.uint64(2) * at + np.uint64(1)]
                    slot = bucket * np.uint64(SLOTS) + (parent & np.uint64(3))
                    _move(note, index, slot, target)
                return slot, loser
            if is_whole and known < np.uint64(PATHS):
                paths[np.uint64(2) * known] = (at << np.uint64(2)) | place
                paths[np.uint64(2) * known + np.uint64(1)] = away
                known += np.uint64(1)
        at += np.uint64(1)
    return NOWHERE, NOWHERE


@inlined
def is_expired(index, slot, step, rules):
    """Return whether a row was last used so long ago that any new key may take it."""
    last = np.int64(index.marks[last_used_word(slot)])
    return rules.expires > 0 and np.int64(step) - last > rules.expires


@inlined
def _priority(index, slot, step, rules):
    """Return the priority of a row: its step of last use, and with EVICT_LFU first its frequency."""
    last = np.uint64(index.marks[last_used_word(slot)])
    if rules.policy == EVICT_LFU and not is_expired(index, slot, step, rules):
        return (frequency(index, row_at(index, slot), step) << np.uint64(32)) | last
    return last


@inlined
def _may_evict(index, slot, step, rules, count):
    """Return whether a new key that was looked up `count` times may evict the row of a slot."""
    if rules.policy == EVICT_LRU or is_expired(index, slot, step, rules):
        return True
    return rules.policy == EVICT_LFU and frequency(index, row_at(index, slot), step) < count


@helper
def least_used(index, one, two, step, rules):
    """Return the slot of the key's candidate buckets with the lowest priority, last used before `step`, or NOWHERE.

    The second bucket is a candidate only if the first is full or buckets are few. Of equal slots the first is taken.
    """
    slot, priority = _least_used_in(index, one, step, rules, MAX_PRIORITY)
    if index.size <= FEW or taken(index, one) == np.uint64(15):
        other, _ = _least_used_in(index, two, step, rules, priority)
        slot = slot if other == NOWHERE else other
    return slot


@helper
def _least_used_in(index, bucket, step, rules, below):
    """Return the bucket's slot, last used before `step`, with the lowest priority if that is less than `below`.

    The second value is that priority, or `below` with NOWHERE.
    """
    best, bits = NOWHERE, taken(index, bucket)
    before = np.uint32(min(step, np.uint64(2**32 - 1)))
    while bits != np.uint64(0):
        slot = bucket * np.uint64(SLOTS) + lowest_bit(bits)
        if index.marks[last_used_word(slot)] < before:
            priority = _priority(index, slot, step, rules)
            if priority < below:
                best, below = slot, priority
        bits &= bits - np.uint64(1)
    return best, below


@helper
def _release(note, index, target, step, rules, count):
    """Free a row for the empty slot `target`: that of a key of another bucket that was last used before `step`.

    Return the slot of that key, NOWHERE if none was found or if the first one may not be evicted: `target`, to which it
    moves, or with a note, by which nothing moves yet, its old slot. Search up to PATHS buckets behind the given one.
    """
    # Full buckets are skipped unless buckets are few, since a full bucket must stay full (see `buckets`): keys that
    # overflowed to their second buckets would not be found any more.
    bucket = target >> np.uint64(2)
    first = bucket - bucket % index.size
    for _ in range(min(index.size - np.uint64(1), np.uint64(PATHS))):
        bucket = first if bucket + np.uint64(1) == first + index.size else bucket + np.uint64(1)
        bits = taken(index, bucket)
        if index.size <= FEW or bits != np.uint64(15):
            slot, _ = _least_used_in(index, bucket, step, rules, MAX_PRIORITY)
            if slot != NOWHERE:
                if not _may_evict(index, slot, step, rules, count):
                    return NOWHERE
                # The slots of a bucket are filled without gaps, so the last key moves to the place of the evicted one.
                last = bucket * np.uint64(SLOTS) + lowest_bit(~bits) - np.uint64(1)
                if note is None:
                    _move(note, index, slot, target)
                    _move(note, index, last, slot)
                    index.marks[row_word(last)] = np.uint32(0)
                    return target
                _move(note, index, last, slot)
                _note_empty(note, index, last)
                return slot
    return NOWHERE


@inlined
def _note_empty(note, index, slot):
    note_slot(note[0], note[1], slot, key_at(index, slot), np.uint32(0), index.marks[last_used_word(slot)])


@helper
def _empty_full(note, index, one, two, step, rules):
    """Return the slot of a key, last used before `step`, of a full bucket in which an empty slot does no harm.

    Each key that overflowed from that bucket to its second one returns. Return NOWHERE if there is no such slot.
    The candidate buckets of the new key do not change: it goes to the first empty slot there.
    """
    index.scratch[0], index.scratch[1] = one, two
    bucket, first, writes = one, one - one % index.size, note[0].notes[note[1]]
    for _ in range(index.size):
        bucket = first if bucket + np.uint64(1) == first + index.size else bucket + np.uint64(1)
        if taken(index, bucket) == np.uint64(15):
            slot, _ = _least_used_in(index, bucket, step, rules, MAX_PRIORITY)
            if slot != NOWHERE:
                if _note_return(note, index, slot):
                    return slot
                note[0].notes[note[1]] = writes
    return NOWHERE


@helper
def _note_return(note, index, hole):
    """Note the moves after which a slot may be empty: of a key that overflowed from its bucket, then of one that
    overflowed from the bucket of that key, and so on. Return False after too many.
    """
    buckets = index.scratch
    for known in range(TWO, TWO + np.uint64(MOST_RETURNS)):
        bucket = hole >> np.uint64(2)
        buckets[known] = bucket
        bits, slot = taken(index, bucket), NOWHERE
        if bits == np.uint64(15):
            slot = _overflowed(index, bucket, known)
        if slot == NOWHERE:
            last = bucket * np.uint64(SLOTS) + lowest_bit(~bits) - np.uint64(1)
            _move(note, index, last, hole)
            _note_empty(note, index, last)
            return True
        if slot == VISITED:
            return False
        _move(note, index, slot, hole)
        hole = slot
    return False


@helper
def _overflowed(index, home, known):
    """Return the slot of a key that overflowed from bucket `home`, NOWHERE if there is none.

    Buckets with a place before `known` in the scratch memory must stay: if each such key is in one, return VISITED.
    """
    first, found = home - home % index.size, NOWHERE
    for bucket in range(first, first + index.size):
        for place in range(bits_set(taken(index, bucket))):
            slot = bucket * np.uint64(SLOTS) + place
            if bucket != home and first_bucket(index, key_at(index, slot)) == home:
                found = slot
                for i in range(known):
                    if index.scratch[i] == bucket:
                        found = VISITED
                if found != VISITED:
                    return found
    return found


@helper
def claim_slot(note, index, key, step, rules, count):
    """Return a slot for a new key and the slot of the key whose row it gets, NOWHERE for an unused row.

    Both are NOWHERE if there is no space. In a partition that is not full it is an empty slot, if necessary one freed
    by moving keys. Otherwise it is the slot of the candidate buckets with the lowest priority, if a key that was looked
    up `count` times may evict it. If all candidates are in use at this step, it is an empty slot that gets the row of a
    key of another bucket; without an empty slot, keys move if `count` is ALWAYS.

    `note` is None, or a journal and the first word of a note: then moves are written there, and nothing is changed.
    """
    one = first_bucket(index, key)
    two = second_bucket(index, key, one)
    if index.fill[partition_of(index, key)] < rules.capacity:
        slot = _empty_slot(index, one, two)
        if slot == NOWHERE:
            slot, _ = _shift(note, index, one, two, False, step, rules)
        if slot != NOWHERE:
            return slot, NOWHERE
    if rules.policy == REFUSE and rules.expires == 0:
        return NOWHERE, NOWHERE
    slot = least_used(index, one, two, step, rules)
    loser = slot
    if slot == NOWHERE:
        # All candidates are in use at this very step, and the rows of this batch are in flight: they must stay.
        slot = _empty_slot(index, one, two)
        if slot != NOWHERE:
            loser = _release(note, index, slot, step, rules, count)
            if loser == NOWHERE and count >= ALWAYS and note is not None:
                loser = _empty_full(note, index, one, two, step, rules)
        elif count >= ALWAYS:
            return _shift(note, index, one, two, True, step, rules)
    elif not _may_evict(index, slot, step, rules, count):
        loser = NOWHERE
    return (NOWHERE, NOWHERE) if loser == NOWHERE else (slot, loser)


@inlined
def _empty_slot(index, one, two):
    """Return an empty slot of a key's candidate buckets, the first before the second, or NOWHERE."""
    for bucket in (one, two):
        places = taken(index, bucket)
        if places != np.uint64(15):
            return bucket * np.uint64(SLOTS) + lowest_bit(~places)
    return NOWHERE


@kernel(types.int64(INDEX, read(U64), read(U16), read(U32), I64, EVICTION_RULES, LOAD_COUNTS, write(I64)))
def insert(index, keys, tables, last_used, used, rules, counts, rows):
    """Give a row to each (key, table) with its step of last use; return the new number of rows in use.

    `used` is the number of rows in use before. In a full partition, with EVICT_LRU, a less recently used row is
    evicted. `rows` gets the row of each key: -1 if there is no space, REPEATED if the key has a row already. A row that
    was evicted again occurs in `rows` twice; the later key owns it.
    """
    size = np.uint64(keys.size)
    for i in range(size):
        if i + AHEAD < size:
            prefetch(index.buckets, first_bucket(index, keys[i + AHEAD]) * KEYS)
        rows[i] = REPEATED
        if slot_of(index, keys[i], tables[i], first_bucket(index, keys[i])) == NOWHERE:
            slot, loser = claim_slot(None, index, keys[i], last_used[i], rules, np.uint64(0))
            rows[i] = -1
            if slot == NOWHERE:
                counts.left_out[tables[i]] += 1
                continue
            if loser != NOWHERE:
                rows[i] = row_at(index, loser)
                counts.loaded[index.tables[rows[i]]] -= 1
                counts.left_out[index.tables[rows[i]]] += 1
            else:
                rows[i] = used
                used += 1
                index.fill[partition_of(index, keys[i])] += np.int32(1)
            counts.loaded[tables[i]] += 1
            put(index, slot, keys[i], np.uint32(rows[i] + 1), last_used[i])
            index.tables[rows[i]] = tables[i]
    return used

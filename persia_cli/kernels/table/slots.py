"""Slots for new keys: an empty slot, one freed by moving keys, or the slot of an evicted row.

A partition never has more rows than its capacity, even if slots are empty.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.table.buckets import (
    ENTRY_AT,
    FEW,
    INDEX,
    KEYS,
    NOWHERE,
    PATHS,
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
from persia_cli.kernels.table.journal import ENTRY, WORDS_OF_SLOT, log_slot
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import lowest_bit, prefetch

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
TWO = np.uint64(2)
ALWAYS = np.uint64(2**32)
"""Frequency that evicts any row not used in this step."""
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
def write_slots(index, entries, base):
    """Write the slots of the entry that begins at word `base`."""
    for i in range(entries[base + ENTRY.writes]):
        at = base + ENTRY.slots + WORDS_OF_SLOT * i
        slot, mark_and_step = entries[at], entries[at + TWO]
        index.buckets[(slot >> TWO) * KEYS + (slot & np.uint64(3))] = entries[at + np.uint64(1)]
        index.marks[row_word(slot)] = np.uint32(mark_and_step & np.uint64(2**32 - 1))
        index.marks[last_used_word(slot)] = np.uint32(mark_and_step >> np.uint64(32))


class Claim(NamedTuple):
    """A slot for a new key, found without a change of the index; `log_room` must follow."""

    slot: np.uint64
    """An empty slot, that of the key whose row the new key gets, or one whose key moves; NOWHERE if there is none."""
    loser: np.uint64
    """The slot of the key whose row the new key gets; NOWHERE for an unused row."""
    last: np.uint64
    """The node of a search (`_find_path`) that has the last bucket of a path of moves; NOWHERE without one."""
    end: np.uint64
    """The slot to which the key at `slot` moves along a path, after which those before it follow."""


@helper
def _find_path(index, one, other, evicts, step, rules):
    """Return how keys of two full buckets move to their other candidates (cuckoo moves), so that a slot becomes free.

    The last key moves to an empty slot, or if `evicts`, to that of a key last used before `step`, which is the loser.
    """
    # Each of the eight keys in the two full buckets could move to exactly one other bucket, the four keys of that one
    # to four others, and so on: a tree of buckets. The first of them with an empty slot ends the shortest path. A
    # random walk, which is simpler, moves more keys and may not end.
    # `scratch` is the queue of a search in breadth, two words a node: the node and slot whose key would move here
    # (parent << 2 | slot), then the bucket.
    nodes = index.scratch
    nodes[1], nodes[3] = one, other
    known = np.uint64(2)
    at = np.uint64(0)
    while at < known:
        bucket = nodes[TWO * at + np.uint64(1)]
        for number in range(np.uint64(SLOTS)):
            slot = bucket * np.uint64(SLOTS) + number
            key = index.buckets[bucket * KEYS + number]
            home = first_bucket(index, key)
            away = second_bucket(index, key, home) if home == bucket else home
            # The bucket that a key leaves stays full, as `buckets` requires: the next key of the path, or finally the
            # new key, takes the slot.
            loser, is_whole = NOWHERE, taken(index, away) == np.uint64(15)
            if evicts:
                loser, _ = _least_used_in(index, away, step, rules, MAX_PRIORITY)
                if loser != NOWHERE:
                    return Claim(slot, loser, at, loser)
            elif not is_whole:
                return Claim(slot, NOWHERE, at, _empty_slot(index, away, away))
            if is_whole and known < np.uint64(PATHS):
                nodes[TWO * known] = (at << TWO) | number
                nodes[TWO * known + np.uint64(1)] = away
                known += np.uint64(1)
        at += np.uint64(1)
    return Claim(NOWHERE, NOWHERE, NOWHERE, NOWHERE)


@inlined
def _slot_before(index, node):
    """Return the node before one on a path, and the slot there whose key moves to it; the first two have none."""
    parent = index.scratch[TWO * node]
    before = parent >> TWO
    return before, index.scratch[TWO * before + np.uint64(1)] * np.uint64(SLOTS) + (parent & np.uint64(3))


@inlined
def _last_of_bucket(index, slot):
    """Return the last slot that is taken of the bucket of a slot; slots are filled without gaps."""
    bucket = slot >> TWO
    return bucket * np.uint64(SLOTS) + lowest_bit(~taken(index, bucket)) - np.uint64(1)


@helper
def log_room(entries, base, index, claim):
    """Write the moves of a claim to the entry that begins at word `base`; return the slot for the new key."""
    if claim.last != NOWHERE:
        # From the end of the path back to its start: each key goes to the slot that was just left, so at every moment
        # each key is in the index. No bucket is on the path twice, since a search in breadth finds the path without the
        # detour first. So logged moves may all read the state before the first move.
        node, slot, target = claim.last, claim.slot, claim.end
        _log_copy(entries, base, index, slot, target)
        while node >= TWO:
            target = slot
            node, slot = _slot_before(index, node)
            _log_copy(entries, base, index, slot, target)
        return slot
    if claim.loser != NOWHERE and claim.loser != claim.slot:
        last = _last_of_bucket(index, claim.loser)
        _log_copy(entries, base, index, last, claim.loser)
        log_slot(entries, base, last, key_at(index, last), np.uint32(0), index.marks[last_used_word(last)])
    return claim.slot


@inlined
def _log_copy(entries, base, index, source, target):
    key, mark, last_used = key_at(index, source), index.marks[row_word(source)], index.marks[last_used_word(source)]
    log_slot(entries, base, target, key, mark, last_used)


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
def _least_used_elsewhere(index, bucket, step, rules, count):
    """Return the slot of a key of another bucket than this one, last used before `step`, whose row is free to take.

    Return NOWHERE if none was found, or if the first one may not be evicted. Search up to PATHS buckets behind this, or
    with `count` ALWAYS the whole partition: then the job ends if there is none.
    """
    first = bucket - bucket % index.size
    others = index.size - np.uint64(1)
    most = others if count >= ALWAYS else min(others, np.uint64(PATHS))
    # Full buckets come last: only one from which no key has overflowed may get an empty slot (see `buckets`). If none
    # did, ever fewer buckets would have empty slots, and in the end no row to spare.
    for full in (False, True):
        at = bucket
        for _ in range(most):
            at = first if at + np.uint64(1) == first + index.size else at + np.uint64(1)
            if (index.size > FEW and taken(index, at) == np.uint64(15)) == full:
                slot, _ = _least_used_in(index, at, step, rules, MAX_PRIORITY)
                if slot != NOWHERE and not (full and _has_overflowed(index, at)):
                    return slot if _may_evict(index, slot, step, rules, count) else NOWHERE
    return NOWHERE


@helper
def _has_overflowed(index, bucket):
    """Return whether a key of this first bucket lies in another one, by a search of the partition."""
    first = bucket - bucket % index.size
    for other in range(first, first + index.size):
        bits = taken(index, other) if other != bucket else np.uint64(0)
        while bits != np.uint64(0):
            slot = other * np.uint64(SLOTS) + lowest_bit(bits)
            if first_bucket(index, key_at(index, slot)) == bucket:
                return True
            bits &= bits - np.uint64(1)
    return False


@helper
def find_slot(index, key, step, rules, count):
    """Return a `Claim` of a slot and a row for a new key; nothing changes.

    In a partition that is not full, it is an empty slot, or one that a path of moves frees, with an unused row.
    Otherwise there are two answers. The first is the row of the candidate buckets with the lowest priority, if a key
    that was looked up `count` times may evict it. If all candidates are in use at this step, the second is a row
    elsewhere. For an empty slot that is the row of a key of another bucket. Without an empty slot, and with `count`
    ALWAYS, it is the row at the end of a path of moves.
    """
    one = first_bucket(index, key)
    two = second_bucket(index, key, one)
    if index.fill[partition_of(index, key)] < rules.capacity:
        slot = _empty_slot(index, one, two)
        if slot != NOWHERE:
            return Claim(slot, NOWHERE, NOWHERE, NOWHERE)
        claim = _find_path(index, one, two, False, step, rules)
        if claim.slot != NOWHERE:
            return claim
    if rules.policy == REFUSE and rules.expires == 0:
        return Claim(NOWHERE, NOWHERE, NOWHERE, NOWHERE)
    slot = least_used(index, one, two, step, rules)
    if slot != NOWHERE:
        slot = slot if _may_evict(index, slot, step, rules, count) else NOWHERE
        return Claim(slot, slot, NOWHERE, NOWHERE)
    # All candidates are in use at this very step, and the rows of this batch are in flight: they must stay.
    slot = _empty_slot(index, one, two)
    if slot != NOWHERE:
        loser = _least_used_elsewhere(index, slot >> TWO, step, rules, count)
        return Claim(slot if loser != NOWHERE else NOWHERE, loser, NOWHERE, NOWHERE)
    if count >= ALWAYS:
        return _find_path(index, one, two, True, step, rules)
    return Claim(NOWHERE, NOWHERE, NOWHERE, NOWHERE)


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
            claim = find_slot(index, keys[i], last_used[i], rules, np.uint64(0))
            rows[i] = -1
            if claim.slot == NOWHERE:
                counts.left_out[tables[i]] += 1
                continue
            if claim.loser != NOWHERE:
                rows[i] = row_at(index, claim.loser)
                counts.loaded[index.tables[rows[i]]] -= 1
                counts.left_out[index.tables[rows[i]]] += 1
            else:
                rows[i] = used
                used += 1
                index.fill[partition_of(index, keys[i])] += np.int32(1)
            counts.loaded[tables[i]] += 1
            index.scratch[ENTRY_AT + ENTRY.writes] = np.uint64(0)
            slot = log_room(index.scratch, ENTRY_AT, index, claim)
            log_slot(index.scratch, ENTRY_AT, slot, keys[i], np.uint32(rows[i] + 1), last_used[i])
            write_slots(index, index.scratch, ENTRY_AT)
            index.tables[rows[i]] = tables[i]
    return used

"""Slow, plain twin of the rows of one feature group on one server: lists of lists, one key after the other."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from persia_cli.store.layout import partitions_of
from tests.naive import GOLDEN, MASK, initial_rows, mix
from tests.naive_optimizers import change, initial_states, noise_start, rounded, rounded_at_random

SLOTS = 4
PATHS = 256
"""Number of buckets that are searched for a free slot for a full one."""
ADMISSION = 0xD1B54A32D192ED03
FEW = 64
"""Number of buckets of a partition up to which a key may be in either of its two."""
COUNTERS = 14
"""Number of counters of a line of the sketch, among them the four of an id."""


def unmix(x):
    """Undo `mix`."""
    x = (x ^ x >> 31 ^ x >> 62) * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    x = (x ^ x >> 27 ^ x >> 54) * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    return x ^ x >> 30 ^ x >> 60


def is_admitted(seed, table, id_):
    """Return True if an id of a table gets a row."""
    draw = mix(mix(mix(seed % 2**64) ^ table.salt) ^ id_ ^ ADMISSION) >> 40
    return draw < round(table.admission * 2**24)


def is_sound(gradient):
    """Return True if all squares of a gradient are finite in float32."""
    with np.errstate(over="ignore"):
        return np.isfinite(gradient * gradient).all()


@dataclass(eq=False)
class Row:
    """A row and the step of its last use; its name is (key, table number)."""

    name: tuple[int, int]
    last_used: int
    embedding: np.ndarray
    states: dict[str, np.ndarray]
    count: int = 1
    """Number of look-ups of its id, as of step `counted`."""
    counted: int = 0


class Sketch:
    """Numbers of look-ups of ids without a row: for each line its epoch, and its counts."""

    def __init__(self, group):
        self.group, self.lines = group, {}

    def line(self, key):
        """The number of a key's line."""
        return (key >> 32) * self.group.partitions * self.group.sketch_lines >> 32

    def seen(self, key, step):
        """Count a look-up of a key; return its number of look-ups."""
        epoch = step >> self.group.epoch_bits
        before, counts = self.lines.get(self.line(key), (0, [0] * 56))
        epoch = max(epoch, before)
        counts = [count >> (epoch - before) for count in counts]
        spread = mix(key)
        places = [n * COUNTERS + ((spread >> 16 * n & 0xFFFF) * COUNTERS >> 16) for n in range(4)]
        lowest = min(counts[place] for place in places)
        for place in places:
            if counts[place] == lowest < 255:
                counts[place] += 1
        self.lines[self.line(key)] = epoch, counts
        return min(lowest + 1, 255)


class Store:
    """A bucket is a list of up to four rows; `buckets` has a list of them for each partition of the server."""

    def __init__(self, layout, number=0, server=0, servers=1):
        self.layout, self.group = layout, layout.groups[number]
        own = partitions_of(self.group.partitions, server, servers)
        self.buckets = {partition: [[] for _ in range(self.group.buckets)] for partition in own}
        self.tables = {table.number: table for table in self.group.tables}
        self.counts = {number: Counter() for number in self.tables}
        self.few = self.group.buckets <= FEW
        self.sketch = Sketch(self.group)
        self.lfu = self.group.counts_uses and layout.when_full != "refuse"

    def rows(self):
        """Every row."""
        return [row for partition in self.buckets.values() for bucket in partition for row in bucket]

    def partition(self, key):
        """The buckets of a key's partition."""
        return self.buckets[(key >> 32) * self.group.partitions >> 32]

    def candidates(self, key):
        """The first and the second bucket of a key."""
        buckets, size = self.partition(key), self.group.buckets
        first = (key % 2**32) * size >> 32
        other = ((key * GOLDEN & MASK) >> 32) * (size - 1) >> 32
        return buckets[first], buckets[(first + 1 + other) % size]

    def nearly_full(self, key):
        """Return True if seven eighths of a key's partition are taken, so that look-ups count."""
        return 8 * sum(map(len, self.partition(key))) >= 7 * self.group.rows_per_partition

    def find(self, name):
        """The row of a name, or None."""
        first, second = self.candidates(name[0])
        both = self.few or len(first) == SLOTS
        return next((row for row in first + (second if both else []) if row.name == name), None)

    def look_up(self, names, step, create):
        """float32[n, dim] embeddings of names, zeros for names without a row."""
        rows = [self.find(name) for name in names]
        if create:
            for row in filter(None, rows):
                row.last_used = max(row.last_used, step)
                if row.counted < step and self.nearly_full(row.name[0]):
                    row.count, row.counted = min(self.frequency(row, step) + 1, 255), step
                self.counts[row.name[1]]["hits"] += 1
            rows = [row or self.find(name) or self.admit(name, step) for name, row in zip(names, rows, strict=True)]
        nothing = np.zeros(self.group.dim, np.float32)
        return np.array([row.embedding if row else nothing for row in rows], np.float32).reshape(-1, self.group.dim)

    def frequency(self, row, step):
        """The number of look-ups of a row's id, halved for each epoch that has ended since."""
        bits = self.group.epoch_bits
        return row.count >> ((step >> bits) - (min(row.counted, step) >> bits))

    def is_expired(self, row, step):
        """Return True if a row's last use is so long ago that any new id may take it."""
        return self.layout.expire_after is not None and step - row.last_used > self.layout.expire_after

    def stays(self, row, step):
        """The priority of a row to stay; the lowest is evicted first."""
        if self.lfu and not self.is_expired(row, step):
            return self.frequency(row, step), row.last_used
        return 0, row.last_used

    def yields(self, row, step, count):
        """Return True if a row can be evicted for an id with so many look-ups."""
        if self.is_expired(row, step) or (self.layout.when_full != "refuse" and not self.lfu):
            return True
        return self.lfu and self.frequency(row, step) < count

    def admit(self, name, step):
        """A new row of a name, or None."""
        key, number = name
        table, count = self.tables[number], self.counts[number]
        id_ = unmix(key) ^ table.salt
        if not is_admitted(self.layout.seed, table, id_):
            count["not_admitted"] += 1
            return None
        counted = self.group.sketch_lines and (table.min_count > 1 or self.nearly_full(key))
        times = self.sketch.seen(key, step) if counted else 1
        if times < table.min_count:
            count["not_admitted"] += 1
            return None
        embedding = initial_rows(self.layout.seed, table.salt, [id_], self.group.dim, table.init_bound)[0]
        states = initial_states(self.group.optimizer, embedding)
        row = Row(name, step, rounded(embedding, self.group.dtype), states, times, step)
        placed = self.place(row, step, lambda other: self.yields(other, step, times), lambda r: self.stays(r, step))
        count["admitted" if placed else "refused"] += 1
        return row if placed else None

    def place(self, row, step, yields, stays):
        """Put a row into a slot, in a partition that is not full into a new one; return True on success."""
        most = self.group.rows_per_partition
        first, second = self.candidates(row.name[0])
        room = sum(map(len, self.partition(row.name[0]))) < most
        slot = self.shift(first, second) if room else None
        if slot is None:
            slot = self.least_used(first, second, step, stays)
            if slot is None:
                slot = self.released(row.name[0], first, second, step, yields, stays)
            elif yields(slot[0][slot[1]]):
                self.evicted(slot[0][slot[1]], step)
            else:
                slot = None
        if slot is None:
            return False
        bucket, place = slot
        bucket[place : place + 1] = [row]
        return True

    def evicted(self, row, step):
        """Count an evicted row."""
        self.counts[row.name[1]]["evicted"] += 1
        self.counts[row.name[1]]["expired"] += self.is_expired(row, step)

    def released(self, key, first, second, step, yields, stays):
        """(bucket, place) of an empty slot, if a row of another bucket is evicted for it; otherwise None."""
        slot = self.empty(first, second)
        if slot is None:
            return None
        buckets = self.partition(key)
        at = next(number for number, bucket in enumerate(buckets) if bucket is slot[0])
        others = (buckets[at + 1 :] + buckets[:at])[:PATHS]
        for full, other in [(full, other) for full in (False, True) for other in others]:
            victims = [row for row in other if row.last_used < step]
            is_full = len(other) == SLOTS and not self.few
            if victims and is_full == full and not (full and self.has_overflowed(buckets, other)):
                place = other.index(min(victims, key=stays))
                if not yields(other[place]):
                    return None
                self.evicted(other[place], step)
                other[place] = other[-1]
                other.pop()
                return slot
        return None

    def has_overflowed(self, buckets, bucket):
        """Return True if a row of this first bucket lies in another one."""
        return any(
            self.candidates(row.name[0])[0] is bucket for other in buckets if other is not bucket for row in other
        )

    def shift(self, first, second):
        """(bucket, place) to use: the end of one that is not full, or the place of a row that was moved; None if none.

        Moves as few rows as possible, each to its other candidate.
        """
        if (empty := self.empty(first, second)) is not None:
            return empty
        paths = [[(first, None)], [(second, None)]]
        for path in paths:
            bucket = path[-1][0]
            for place, row in enumerate(bucket):
                other = next(each for each in self.candidates(row.name[0]) if each is not bucket)
                if len(other) < SLOTS:
                    other.append(row)
                    return self.pulled(path, place)
                if len(paths) < PATHS:
                    paths.append([*path, (other, place)])
        return None

    def empty(self, first, second):
        """(bucket, place) after the last row of a bucket that is not full; None if both are."""
        return next(((bucket, len(bucket)) for bucket in (first, second) if len(bucket) < SLOTS), None)

    def pulled(self, path, place):
        """Move rows along a path of buckets into the free place at its end; return the place that is free then."""
        for number in range(len(path) - 1, 0, -1):
            bucket, came_from = path[number]
            bucket[place] = path[number - 1][0][came_from]
            place = came_from
        return path[0][0], place

    def least_used(self, first, second, step, stays):
        """(bucket, place) of the row, last used before the step, with the lowest priority; of equals the first."""
        buckets = (first, second) if self.few or len(first) == SLOTS else (first,)
        slots = [
            (bucket, place) for bucket in buckets for place in range(len(bucket)) if bucket[place].last_used < step
        ]
        if not slots:
            return None
        return min(slots, key=lambda slot: stays(slot[0][slot[1]]))

    def update(self, names, gradients, step):
        """Apply the optimizer; it is no use of rows."""
        for name, gradient in zip(names, gradients, strict=True):
            row = self.find(name)
            if row is None:
                self.counts[name[1]]["gradients_missing"] += 1
            elif not is_sound(gradient):
                self.counts[name[1]]["gradients_refused"] += 1
            else:
                weights = change(self.group.optimizer, row.embedding, row.states, gradient, step)
                start = noise_start(self.layout.seed, step, name[0])
                row.embedding = rounded_at_random(weights, self.group.dtype, start)

    def insert(self, names, last_used, parts):
        """Insert rows with `parts` {name: float32[n, columns]}; return the number of names that existed already."""
        repeated, self.evicted = 0, self.lost
        for i, name in enumerate(names):
            if self.find(name) is not None:
                repeated += 1
                continue
            values = {part: array[i].copy() for part, array in parts.items()}
            row = Row(name, last_used[i], rounded(values.pop("embedding"), self.group.dtype), values, 1, last_used[i])
            evict = self.layout.when_full != "refuse"
            placed = self.place(row, row.last_used, lambda other, evict=evict: evict, lambda other: other.last_used)
            self.counts[name[1]]["loaded" if placed else "left_out"] += 1
        del self.evicted
        return repeated

    def lost(self, row, step):
        """Count a row that is evicted while others are inserted."""
        self.counts[row.name[1]]["loaded"] -= 1
        self.counts[row.name[1]]["left_out"] += 1

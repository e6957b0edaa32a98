"""Slow, plain twins of the kernels: the result of each, computed in the obvious way."""

import math
from itertools import pairwise

import numpy as np

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def pool_forward(rows, inverse, offsets, modes, rounds, size):
    """float32[n, C, dim] of unique rows pooled by mode (0 sum, 1 mean, 2 sqrtn, 3 skipped), added in order.

    An id of feature f is rounds[f] consecutive entries of `inverse`.
    """
    columns = []
    for feature, mode in enumerate(modes):
        if mode == 3:
            continue
        column = np.zeros((size, rows.shape[1]), np.float32)
        for sample in range(size):
            entries = inverse[offsets[feature * size + sample] : offsets[feature * size + sample + 1]]
            for row in entries:
                column[sample] += rows[row]
            if len(entries):
                column[sample] /= divisor(mode, len(entries) // rounds[feature])
        columns.append(column)
    return np.stack(columns, 1) if columns else np.zeros((size, 0, rows.shape[1]), np.float32)


def divisor(mode, ids):
    """Return the divisor of the pooled sum of `ids` ids."""
    return np.float32([1, ids, np.sqrt(np.float32(ids))][mode])


def pool_backward(gradient, inverse, offsets, modes, rounds, rows):
    """float32[rows, dim]: gradient float32[n, C, dim] of pooled vectors summed per unique row."""
    size = gradient.shape[0]
    gradients = np.zeros((rows, gradient.shape[2]), np.float32)
    pooled = [feature for feature, mode in enumerate(modes) if mode != 3]
    for sample in range(size):
        for column, feature in enumerate(pooled):
            entries = inverse[offsets[feature * size + sample] : offsets[feature * size + sample + 1]]
            for row in entries:
                share = gradient[sample, column] / divisor(modes[feature], len(entries) // rounds[feature])
                gradients[row] += share
    return gradients


def ids_of(entries, rounds):
    """The entries of a bag, one list for each id."""
    return [entries[at : at + rounds] for at in range(0, len(entries), rounds)]


def sequence_forward(rows, inverse, offsets, rounds, length):
    """values float32[n, length, dim] and mask bool[n, length]: the last `length` ids of each sample."""
    size = len(offsets) - 1
    values = np.zeros((size, length, rows.shape[1]), np.float32)
    mask = np.zeros((size, length), bool)
    for sample in range(size):
        ids = ids_of(inverse[offsets[sample] : offsets[sample + 1]], rounds)
        for position, entries in enumerate(ids[-length:]):
            for row in entries:
                values[sample, position] += rows[row]
            mask[sample, position] = True
    return values, mask


def sequence_backward(gradient, inverse, offsets, rounds, rows):
    """float32[rows, dim]: gradient float32[n, length, dim] of a feature's sequences summed per unique row."""
    gradients = np.zeros((rows, gradient.shape[2]), np.float32)
    for sample in range(len(offsets) - 1):
        ids = ids_of(inverse[offsets[sample] : offsets[sample + 1]], rounds)
        for position, entries in enumerate(ids[-gradient.shape[1] :]):
            for row in entries:
                gradients[row] += gradient[sample, position]
    return gradients


def spacing(values, bits, least):
    """float64: the distance of values of `bits` significant bits, at each value; at least `least`."""
    _, exponents = np.frexp(np.asarray(values, np.float64))
    return np.maximum(np.ldexp(1.0, exponents - bits), least)


def to_bfloat16(values):
    """float32 values rounded to the nearest bfloat16, ties to even, as float32."""
    values = np.asarray(values, np.float64)
    step = spacing(np.where(np.isfinite(values), values, 1.0), 8, 2.0**-133)
    with np.errstate(over="ignore"):
        return (np.rint(values / step) * step).astype(np.float32)


def to_float16_row(row):
    """(factor, float16 halves) of a float32 row on the wire: its greatest magnitude comes into [16384, 32768)."""
    greatest = np.abs(row).max()
    if not np.isfinite(greatest):
        return greatest, np.full(row.size, np.nan, np.float16)
    if greatest == 0:
        return greatest, row.astype(np.float16)
    factor = np.float32(2.0 ** max(math.frexp(greatest)[1] - 15, -126))
    return factor, (row / factor).astype(np.float16)


def noise(start, column):
    """32 random bits, a hash of start + column * an odd constant."""
    x = start + column * 0x9E3779B9 & 2**32 - 1
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = (x ^ x >> shift) * factor & 2**32 - 1
    return x ^ x >> 15


def to_bfloat16_at_random(value, start, column):
    """A finite float32 as bfloat16: away from zero if its distance beyond the lesser neighbour exceeds the noise."""
    step = float(spacing(value, 8, 2.0**-133))
    steps = np.floor(abs(float(value)) / step + (noise(start, column) & 0xFFFF) / 2**16)
    return np.copysign(np.float32(steps * step), value)


def to_float16_at_random(value, start, column):
    """A finite float32 as float16, within its range; upwards, or away from zero above 2^-14, by the noise."""
    value = float(np.clip(value, -65504, 65504))
    share = (noise(start, column) & 0x1FFF) / 2**13
    if abs(value) < 2.0**-14:
        # The sum is computed in float32.
        return np.float32(np.floor(np.float32(value * 2.0**24) + np.float32(share)) * 2.0**-24)
    step = float(spacing(value, 11, 2.0**-24))
    return np.float32(np.copysign(np.floor(abs(value) / step + share) * step, value))


def to_int8_row(row, start=None):
    """(scale, int8 numbers) of a float32 row: rounded to nearest even, or by the noise from `start` on."""
    greatest = np.abs(row).max()
    significand, exponent = np.frexp(np.float64(np.float32(greatest / np.float32(127))))
    scale = np.float32(np.clip(np.ldexp(np.rint(significand * 2**23), exponent - 23), 2.0**-126, 2.0**121))
    if not np.isfinite(greatest):
        return np.float32(np.nan), np.full(row.size, 127, np.int8)
    numbers = np.rint(row / scale)
    if start is not None:
        chances = [((noise(start, column) & 0x3FFF) + 0.5) / 2**14 for column in range(row.size)]
        numbers = np.floor(row / scale + np.array(chances, np.float32))
    return scale, np.clip(numbers, -127, 127).astype(np.int8)


def int8_values(scale, numbers):
    """float32 values of numbers with a scale."""
    return numbers.astype(np.float32) * scale


def mix(x):
    """The finalizer of splitmix64 on a Python integer."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def keys_of(salt, ids):
    """uint64 keys of ids in a table."""
    return np.array([mix(int(id_) ^ salt) for id_ in ids], np.uint64)


def initial_rows(seed, salt, ids, dim, bound):
    """float32[n, dim] initial embeddings of `ids`: uniform in [-bound, bound), exactly."""
    rows = np.empty((len(ids), dim), np.float32)
    for i, id_ in enumerate(ids):
        start = mix(mix(mix(seed % 2**64) ^ salt) ^ int(id_))
        for column in range(dim):
            bits = mix((start + (column + 1) * GOLDEN) & MASK) >> 40
            rows[i, column] = np.float32(bits - 2**23) * (np.float32(bound) * np.float32(2**-23))
    return rows


def unique(keys, tables):
    """(unique keys, unique tables, inverse) of (key, table) pairs in order of first appearance."""
    numbers = {}
    inverse = [numbers.setdefault(pair, len(numbers)) for pair in zip(keys.tolist(), tables.tolist(), strict=True)]
    return [key for key, _ in numbers], [table for _, table in numbers], inverse


def server_of(key, num_partitions, servers):
    """The server whose partitions have a key: server s owns [ceil(P*s/S), ceil(P*(s+1)/S))."""
    partition = (key >> 32) * num_partitions >> 32
    return next(s for s in range(servers) if partition < -(-num_partitions * (s + 1) // servers))


def stack_ids(rounds, size, id_):
    """The rows of an id in a hash stack: one of `size` rows of each round."""
    chances = [mix(id_ + r * GOLDEN & MASK) >> 32 for r in range(1, rounds + 1)]
    return [r * size + (chance * size >> 32) for r, chance in enumerate(chances)]


def keys_of_stack(table, id_):
    """The keys of an id's rows: its own, or one of each round of a hash stack."""
    ids = stack_ids(table.rounds, table.size, id_) if table.rounds else [id_]
    return [mix(each ^ table.salt) for each in ids]


def plan_group(layout, group, servers, ids, offsets, size):
    """(keys, tables, bounds, inverse, offsets) of one group of a feature-major batch, as lists."""
    specs = {table.number: table for table in layout.tables()}
    pairs, group_offsets = [], [0]
    for position, feature in enumerate(layout.features):
        if feature.group != group:
            continue
        for bag in range(position * size, (position + 1) * size):
            for id_ in ids[offsets[bag] : offsets[bag + 1]].tolist():
                pairs += [(key, feature.table) for key in keys_of_stack(specs[feature.table], id_)]
            group_offsets.append(len(pairs))
    unique = list(dict.fromkeys(pairs))
    by_table = list(dict.fromkeys(layout.features[feature].table for feature in layout.features_of(group)))
    owners = {pair: server_of(pair[0], layout.groups[group].partitions, servers) for pair in unique}
    unique.sort(key=lambda pair: (owners[pair], by_table.index(pair[1])))
    bounds = [sum(owner < server for owner in owners.values()) for server in range(servers + 1)]
    inverse = [unique.index(pair) for pair in pairs]
    stacks = any(specs[table].rounds > 1 for table in by_table)
    single = not stacks and all(stop - start == 1 for start, stop in pairwise(group_offsets))
    return [key for key, _ in unique], [t for _, t in unique], bounds, inverse, None if single else group_offsets


def merge(parts):
    """{(key, table): summed gradient} of (keys, tables, gradients) parts, in order of first appearance."""
    sums = {}
    for keys, tables, gradients in parts:
        for pair, gradient in zip(zip(keys.tolist(), tables.tolist(), strict=True), gradients, strict=True):
            sums[pair] = sums[pair] + gradient if pair in sums else gradient
    return sums

"""Slow, plain twins of the kernels that read exported rows."""

import numpy as np

from tests import naive, naive_optimizers


def frozen_index(keys, homes, buckets, first):
    """(row of the first key, keys) of each bucket of an exported table; None if there are too few buckets."""
    found, bucket = [[] for _ in range(buckets)], 0
    for key in keys:
        bucket = max(bucket, (key >> 32) * homes >> 32)
        if bucket < buckets and len(found[bucket]) == 7:
            bucket += 1
        if bucket >= buckets:
            return None
        found[bucket].append(key)
    rows = [first + sum(map(len, found[:number])) for number in range(buckets)]
    return list(zip(rows, found, strict=True))


def frozen_values(data, dim, form):
    """float32[n, dim] of exported rows, uint8[n, bytes]."""
    data = np.ascontiguousarray(data)
    if form == "float32":
        return data.view(np.float32)
    if form == "float16":
        return data.view(np.float16).astype(np.float32)
    if form == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if form == "int8":
        tail = np.ascontiguousarray(data[:, dim:]).view(np.float32)
        return data[:, :dim].astype(np.float32) * tail[:, :1] + tail[:, 1:]
    numbers = np.stack([data & 15, data >> 4], 2).reshape(len(data), 2 * data.shape[1])[:, :dim]
    tail = np.ascontiguousarray(data[:, -4:]).view(np.float16).astype(np.float32)
    return numbers.astype(np.float32) * tail[:, :1] + tail[:, 1:]


def read_frozen(features, known, begin, rare, dim, ids, offsets, size):
    """float32[entries, dim] of the ids of a batch, and the number of entries of each feature without a row.

    known[f] has the rows of feature f by id. `begin` is (seed, bound, admission, dtype) of missing rows, or None if
    these are zeros; the row of the id `rare` comes before, in a table that has one and is no stack.
    """
    out, missing = [], []
    for f, rows in enumerate(known):
        missing.append(0)
        for id_ in ids[offsets[f * size] : offsets[(f + 1) * size]].tolist():
            rounds = int(features.rounds[f])
            for own in naive.stack_ids(rounds, int(features.size[f]), id_) if rounds else [id_]:
                row = rows.get(own)
                if row is None:
                    missing[-1] += 1
                    row = None if rounds else rows.get(rare)
                if row is None:
                    row = first_row(begin, int(features.salt[f]), own, dim)
                out.append(row)
    return np.array(out, np.float32).reshape(-1, dim), missing


def first_row(begin, salt, id_, dim):
    """float32[dim]: the result of training's first look-up of an id."""
    if begin is None:
        return np.zeros(dim, np.float32)
    seed, bound, admission, dtype = begin
    draw = naive.mix(naive.mix(naive.mix(seed) ^ salt) ^ id_ ^ 0xD1B54A32D192ED03) >> 40
    if draw >= admission:
        return np.zeros(dim, np.float32)
    row = naive.initial_rows(seed, salt, [id_], dim, bound)[0].astype(np.float32)
    return naive_optimizers.rounded(row, dtype)

"""The index and the rows of exported tables against their plain twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.kernels.serving.frozen_index import KEYS, WORDS, fill_buckets
from persia_cli.kernels.serving.frozen_rows import (
    FORMS,
    Frozen,
    FrozenFeatures,
    Overlay,
    find_row,
    new_row,
    read_frozen,
)
from persia_cli.serving.description import stride_of
from persia_cli.serving.row_writer import encoded
from tests import naive, naive_frozen


def index_of(keys, homes, buckets, first, parts):
    """The index as 64-bit words, from keys that are added in several parts; None if the buckets did not suffice."""
    words, bucket, row = np.full(buckets * WORDS, 99, np.uint64), -1, first
    for part in [*np.array_split(keys, parts), keys[:0]]:
        if not part.size and row < first + keys.size:
            continue
        bucket = fill_buckets(part, homes, buckets, row, bucket, words)
        if bucket < 0:
            return None
        row += part.size
    return words


@st.composite
def key_sets(draw):
    """Distinct keys, ascending; some crowd at one end or around one place."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count, crowd = draw(st.integers(0, 120)), draw(st.sampled_from([0, 40, 63]))
    keys = rng.integers(0, 2**64, count, np.uint64, endpoint=False) >> np.uint64(crowd and 64 - crowd)
    return np.unique(~keys if draw(st.booleans()) else keys)


@given(key_sets(), st.integers(1, 30), st.integers(0, 5), st.integers(1, 4), st.integers(0, 50))
def test_an_index_is_that_of_plain_loops(keys, homes, spare, parts, first):
    found = index_of(keys, homes, homes + spare, first, parts)
    expected = naive_frozen.frozen_index(keys.tolist(), homes, homes + spare, first)
    assert (found is None) == (expected is None)
    if found is not None:
        for bucket, (row, inside) in enumerate(expected):
            words = found[bucket * WORDS : (bucket + 1) * WORDS].tolist()
            assert words[0] == row * 8 + len(inside)
            assert words[1 : 1 + len(inside)] == inside


def test_keys_that_do_not_ascend_are_refused():
    words = np.zeros(4 * WORDS, np.uint64)
    assert fill_buckets(np.array([5, 5], np.uint64), 4, 4, 0, -1, words) == -2
    assert fill_buckets(np.array([9, 5], np.uint64), 4, 4, 0, -1, words) == -2


@st.composite
def tables(draw):
    """(features, frozen, overlay, words, values, rows by id, ids, offsets, size): a file of two tables, and a batch.

    Some rows are changed, new or deleted in an overlay.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dim, form = draw(st.sampled_from([1, 3, 4, 16, 17, 40])), draw(st.sampled_from(list(FORMS)))
    rounds = draw(st.sampled_from([0, 0, 3]))
    sizes, salts = [draw(st.integers(0, 60)), draw(st.integers(0, 60))], [11, 2**63 + 5]
    words, values, known, rules, row, bucket = [], [], [], [], 0, 0
    for count, salt in zip(sizes, salts, strict=True):
        ids = rng.permutation(200)[:count].astype(np.uint64)
        keys = naive.keys_of(salt, ids.tolist())
        order = np.argsort(keys)
        rows = rng.standard_normal((count, dim)).astype(np.float32)
        homes = max(1, count // 5)
        buckets = homes + count // KEYS + 1
        words.append(index_of(keys[order], homes, buckets, row, 2))
        data = encoded(rows[order], form, "t")
        values.append(data.reshape(-1))
        plain = naive_frozen.frozen_values(data, dim, form)
        known.append({int(id_): plain[place] for place, id_ in enumerate(ids[order])})
        rules.append((salt, bucket, homes, buckets))
        row, bucket = row + count, bucket + buckets
    changed, changes = draw(overlays(rng, salts, known, dim, form))
    size, read = draw(st.integers(0, 4)), [draw(st.integers(0, 1)) for _ in range(draw(st.integers(1, 3)))]
    lengths = rng.integers(0, 40, len(read) * size)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)
    ids = rng.integers(0, 220, offsets[-1]).astype(np.uint64)
    ids = ids[np.arange(ids.size) // draw(st.sampled_from([1, 3, 100]))]  # also the same one many times
    bound, admission = draw(st.sampled_from([-1.0, 0.0, 0.25])), draw(st.sampled_from([0, 2**23, 2**24]))
    trained = draw(st.sampled_from(["float32", "bfloat16", "float16", "int8"]))
    chosen = [rules[table] for table in read]
    features = FrozenFeatures(
        feature=np.arange(len(read)),
        salt=np.array([each[0] for each in chosen], np.uint64),
        rounds=np.full(len(read), rounds),
        size=np.full(len(read), 50, np.uint64),
        first_bucket=np.array([each[1] for each in chosen], np.uint64),
        homes=np.array([each[2] for each in chosen], np.uint64),
        buckets=np.array([each[3] for each in chosen], np.uint64),
        bound=np.full(len(read), bound, np.float32),
        admission=np.full(len(read), admission, np.uint64),
        substitute=np.empty(len(read), np.int64),
    )
    rare = draw(st.integers(0, 220))
    overlay = Overlay(*changed, *np.array([changes[table] for table in read], np.uint64).T.copy())
    for array in overlay:
        array.flags.writeable = False
    frozen = Frozen(
        *(np.uint64(dim), np.uint64(stride_of(dim, form)), np.uint64(row), FORMS[form], np.uint64(7)),
        *(new_row(dim, trained), np.empty(64, np.uint64), np.empty(64, np.int64), np.empty(2, np.float32)),
    )
    find_row(frozen, features, overlay, np.concatenate(words), np.uint64(rare), features.substitute)
    begin = None if bound < 0 else (7, bound, admission, trained)
    shown = ([known[table] for table in read], begin, rare, rounds)
    return features, frozen, overlay, words, values, shown, ids, offsets, size


@st.composite
def overlays(draw, rng, salts, known, dim, form):
    """((words, places, values), (first bucket, homes, buckets) of each table); changes the rows in `known`."""
    words, places, values, rules, bucket, first, used = [np.empty(0, np.uint64)], [], [], [], 0, 0, 0
    for salt, rows in zip(salts, known, strict=True):
        ids = rng.permutation(200)[: draw(st.integers(0, 40))].astype(np.uint64)
        if not ids.size:
            rules.append((0, 0, 0))
            continue
        keys = naive.keys_of(salt, ids.tolist())
        order = np.argsort(keys)
        is_there = rng.random(ids.size) < 0.7
        data = encoded(rng.standard_normal((int(is_there.sum()), dim)).astype(np.float32), form, "t")
        plain, place = naive_frozen.frozen_values(data, dim, form), 0
        for id_, live in zip(ids[order].tolist(), is_there, strict=True):
            places.append(used + place if live else -1)
            if live:
                rows[id_], place = plain[place], place + 1
            else:
                rows.pop(id_, None)
        homes = max(1, ids.size // 5)
        buckets = homes + ids.size // KEYS + 1
        words.append(index_of(keys[order], homes, buckets, first, 2))
        values.append(data.reshape(-1))
        rules.append((bucket, homes, buckets))
        bucket, first, used = bucket + buckets, first + ids.size, used + place
    joined = np.concatenate(values) if values else np.empty(0, np.uint8)
    return (np.concatenate(words), np.array(places, np.int64), joined), rules


@given(tables())
def test_rows_that_are_read_are_those_of_plain_loops(case):
    features, frozen, overlay, words, values, (known, begin, rare, rounds), ids, offsets, size = case
    entries = ids.size * max(1, rounds)
    out, missing = np.full(entries * int(frozen.dim), np.nan, np.float32), np.zeros(len(known), np.int64)
    file, data = np.concatenate(words), np.concatenate(values)
    for array in (file, data, ids, offsets):
        array.flags.writeable = False
    assert read_frozen(frozen, features, overlay, file, data, ids, offsets, size, False, out, missing) == 0
    expected, absent = naive_frozen.read_frozen(features, known, begin, rare, int(frozen.dim), ids, offsets, size)
    np.testing.assert_array_equal(out.reshape(entries, int(frozen.dim)), expected)
    assert missing.tolist() == absent


@pytest.mark.parametrize("dim", [2, 3, 16, 17, 64])
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e3])
def test_quantised_rows_are_those_of_torch(dim, scale):
    import torch

    rows = (np.random.default_rng(dim).standard_normal((500, dim)) * scale).astype(np.float32)
    rows[0], rows[1] = 0.25, 0.0
    given = torch.from_numpy(rows)
    byte = torch.ops.quantized.embedding_bag_byte_prepack(given).numpy()
    np.testing.assert_array_equal(encoded(rows, "int8", "t"), byte)
    # Torch may round product and sum at once.
    unpacked = torch.ops.quantized.embedding_bag_byte_unpack(torch.from_numpy(byte)).numpy()
    largest = np.abs(rows).max(axis=1, keepdims=True)
    assert (np.abs(naive_frozen.frozen_values(byte, dim, "int8") - unpacked) <= 2.0**-22 * largest).all()
    if dim % 2 == 0:
        four = torch.ops.quantized.embedding_bag_4bit_prepack(given).numpy()
        np.testing.assert_array_equal(encoded(rows, "int4", "t"), four)

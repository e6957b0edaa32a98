"""What sketches say of a stream, against what counting all of it says."""

from collections import Counter

import numpy as np
import pytest

from persia_cli.data.profile.cardinality import STANDARD_ERROR, Cardinality
from persia_cli.data.profile.ids import IdSketch, joined
from persia_cli.data.profile.tally import FREQUENT, SAMPLE, Frequent, KeySample, Tally


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


def zipf_ids(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).zipf(1.3, rows).astype(np.uint64)


@pytest.mark.parametrize("size", [0, 1, 2, 100, 5000, 20_000, 60_000, 400_000])
def test_cardinality_is_within_the_stated_error(size: int) -> None:
    errors = []
    for seed in range(8):
        cardinality = Cardinality()
        keys = np.random.default_rng(seed).integers(0, 2**64, size, np.uint64)
        cardinality.add(keys)
        cardinality.add(keys[: size // 2])
        errors.append(cardinality.estimate() / size - 1.0 if size else float(cardinality.estimate()))
    assert max(map(abs, errors)) <= 4 * STANDARD_ERROR
    assert abs(float(np.mean(errors))) <= 4 * STANDARD_ERROR / 8**0.5


def test_cardinalities_of_overlapping_streams_join() -> None:
    one, two = Cardinality(), Cardinality()
    keys = np.random.default_rng(0).integers(0, 2**64, 90_000, np.uint64)
    one.add(keys[:60_000])
    two.add(keys[30_000:])
    assert one.joined(two).estimate() == pytest.approx(90_000, rel=4 * STANDARD_ERROR)


def test_a_tally_counts_in_any_order(tally: Tally) -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 300, np.uint64)
    stream = np.random.default_rng(1).choice(keys, 5000)
    for weights in (None, np.arange(5000)):
        found, sums = tally(stream, weights)
        wanted: Counter[int] = Counter()
        for key, weight in zip(stream.tolist(), weights if weights is not None else [1] * 5000, strict=True):
            wanted[key] += int(weight)
        assert dict(zip(found.tolist(), sums.tolist(), strict=True)) == wanted


def test_frequent_keys_are_short_by_no_more_than_is_said(tally: Tally) -> None:
    frequent, seen = Frequent(), Counter[int]()
    for seed in range(10):
        keys, counts = tally(zipf_ids(20_000, seed))
        frequent.add(keys, counts, tally)
        seen.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
    assert len(seen) > 2 * FREQUENT
    assert 0 < frequent.short <= sum(seen.values()) / (FREQUENT + 1)
    kept = dict(zip(frequent.keys.tolist(), frequent.counts.tolist(), strict=True))
    for key, count in seen.items():
        assert count - frequent.short <= kept.get(key, 0) <= count
    top = frequent.top(5)[0].tolist()
    assert top == [key for key, _ in seen.most_common(5)]


def test_few_ids_are_counted_exactly(tally: Tally) -> None:
    sketch = IdSketch()
    sketch.add(np.arange(FREQUENT, dtype=np.uint64), tally)
    sketch.add(np.arange(10, dtype=np.uint64), tally)
    assert (sketch.distinct, sketch.is_exact, sketch.count) == (FREQUENT, True, FREQUENT + 10)
    assert set(sketch.top(10).items()) == {(number, 2) for number in range(10)}
    other = IdSketch()
    other.add(np.array([5, 2**64 - 1], np.uint64), tally)
    both = joined(sketch, other, tally)
    assert not both.is_exact
    assert both.distinct == pytest.approx(FREQUENT + 1, rel=4 * STANDARD_ERROR)
    assert next(iter(both.top(1).items())) == (5, 3 - both.frequent.short)


def test_samples_of_two_streams_agree_on_their_keys(tally: Tally) -> None:
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, 120_000, np.uint64)
    one, two = KeySample(), KeySample()
    for sample, part in ((one, keys[:100_000]), (two, keys[80_000:])):
        for piece in np.array_split(part, 7):
            sample.add(*tally(np.repeat(piece, 3)), tally)
    assert SAMPLE // 2 < one.keys.size <= SAMPLE
    assert (one.level, two.level) == (3, 2)
    assert set(one.counts.tolist()) == {3}
    mine, yours = set(one.at(3)[0].tolist()), set(two.at(3)[0].tolist())
    assert mine & yours == mine & set(keys[80_000:100_000].tolist())
    assert len(mine & yours) / len(yours) == pytest.approx(0.5, abs=0.03)

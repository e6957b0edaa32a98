"""Histograms of staleness: merged, and short for any number of values."""

import pytest

from persia_cli.observe.staleness import in_sparks, in_words, mean, merged, ranges


def test_merged_adds_steps() -> None:
    assert merged([{3: 4, 1: 1}, {1: 2}, {}]) == {1: 3, 3: 4}
    assert list(merged([{3: 4, 1: 1}])) == [1, 3]
    assert merged([]) == {}


def test_the_mean_is_over_steps() -> None:
    assert mean({1: 3, 5: 1}) == 2.0
    assert mean({}) == 0.0


def test_few_values_are_shown_each_for_itself() -> None:
    assert ranges({900: 1, 2: 5}) == {2: 5, 900: 1}


def test_many_values_are_shown_in_ranges_that_double() -> None:
    many = dict.fromkeys(range(1, 1025), 2)
    assert ranges(many) == {1: 2, 2: 2, 4: 4, 8: 8, 16: 16, 32: 32, 64: 64, 128: 128, 256: 256, 512: 512, 1024: 1024}
    assert len(in_words([many])) < 100
    assert len(in_sparks(many)) == 11


@pytest.mark.parametrize(
    ("ranks", "words"), [([{1: 2, 3: 48}], "1:2,3:48"), ([{1: 2}, {2: 1}], "1:2/2:1"), ([{}, {1: 1}], "-/1:1")]
)
def test_as_a_sentence(ranks: list[dict[int, int]], words: str) -> None:
    assert in_words(ranks) == words


@pytest.mark.parametrize(
    ("histogram", "sparks"),
    [({}, ""), ({1: 9}, "█"), ({3: 100, 1: 1}, "▁ █"), ({1: 4, 2: 8}, "▄█"), ({600: 1}, "█"), ({0: 2}, "")],
)
def test_in_sparks(histogram: dict[int, int], sparks: str) -> None:
    assert in_sparks(histogram) == sparks

"""Histograms of staleness: merged, and short for any number of values."""

from persia_cli.observe.staleness import in_sparks, merged, ranges


def test_merged_adds_steps() -> None:
    assert merged([{3: 4, 1: 1}, {1: 2}, {}]) == {1: 3, 3: 4}
    assert list(merged([{3: 4, 1: 1}])) == [1, 3]
    assert merged([]) == {}


def test_many_values_are_shown_in_ranges_that_double() -> None:
    many = dict.fromkeys(range(1, 1025), 2)
    assert ranges(many) == {1: 2, 2: 2, 4: 4, 8: 8, 16: 16, 32: 32, 64: 64, 128: 128, 256: 256, 512: 512, 1024: 1024}
    assert len(in_sparks(many)) == 11


def test_one_bar_for_each_staleness() -> None:
    assert [in_sparks(each) for each in ({}, {3: 100, 1: 1}, {1: 4, 2: 8}, {0: 2})] == ["", "▁·█", "▄█", ""]

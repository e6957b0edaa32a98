"""Hashes and random numbers that must never change: sample order depends on them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.data.read.random_bits import normal, permutation, salt, stream, uniform
from persia_cli.kernels.splitmix import mix64


def test_splitmix64_gives_its_published_sequence() -> None:
    """The widely listed first outputs of the generator for seed 1234567."""
    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + golden * i) % 2**64 for i in range(1, 6)], np.uint64)
    assert mix64(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.integers(0, 2**64 - 1), st.integers(0, 500))
def test_a_permutation_holds_every_row_once(key: int, size: int) -> None:
    order = permutation(np.uint64(key), size)
    assert np.array_equal(np.sort(order), np.arange(size))


def test_permutations_stay_what_they_are() -> None:
    assert permutation(salt(1, 2, 3), 8).tolist() == [1, 3, 4, 5, 0, 2, 7, 6]


def test_salts_distinguish_their_parts() -> None:
    salts = {int(salt(*parts)) for parts in [(), (0,), (0, 0), (0, 1), (1, 0), (2**63 - 1, 5), (-1, 0)]}
    assert len(salts) == 7


def test_uniform_and_normal_have_their_moments() -> None:
    bits = stream(salt(7), np.arange(200_000, dtype=np.uint64))
    u, z = uniform(bits), normal(bits)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert abs(u.mean() - 0.5) < 0.003
    assert abs(z.mean()) < 0.01
    assert abs(z.std() - 1.0) < 0.01
    assert uniform(np.array([2**64 - 1], np.uint64))[0] < 1.0

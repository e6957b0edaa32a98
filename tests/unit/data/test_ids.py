"""Ids of text, hashes and random numbers: what they are must never change."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.data.read.ids import text_id, text_ids
from persia_cli.data.read.random_bits import permutation, salt
from persia_cli.kernels.rows.splitmix import mix64
from tests import naive_text


@settings(max_examples=40)
@given(st.text(max_size=12), st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=8))
def test_an_id_is_xxh64_seeded_by_the_hash_of_the_name(name: str, texts: list[str | None]) -> None:
    seed = naive_text.xxh64(name.encode(), 0)
    expected = [None if text is None else naive_text.xxh64(text.encode(), seed) for text in texts]
    assert text_ids(name, pa.array(texts, pa.string())).to_pylist() == expected
    assert [text_id(name, text) for text in texts if text is not None] == [id_ for id_ in expected if id_ is not None]


def test_ids_stay_what_they_are() -> None:
    assert text_id("education", "HS-grad") == naive_text.xxh64(b"HS-grad", naive_text.xxh64(b"education", 0))
    assert text_id("education", "HS-grad") != text_id("occupation", "HS-grad")


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

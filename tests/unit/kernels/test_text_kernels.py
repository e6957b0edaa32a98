"""Ids of texts: XXH64 against its published values and its plain twin, and hexadecimal numbers against Python's."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persia_cli.kernels.text import hash_texts, parse_hexadecimal
from tests import naive_text


def joined(texts):
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    return np.frombuffer(b"".join(texts), np.uint8), offsets


def hashes(texts, seed):
    ids = np.empty(len(texts), np.uint64)
    hash_texts(*joined(texts), seed, ids)
    return ids.tolist()


@pytest.mark.parametrize(
    ("text", "seed", "hashed"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"xxhash", 0, 0x32DD38952C4BC720),
        (b"xxhash", 20141025, 0xB559B98D844E0635),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_published_values(text, seed, hashed):
    assert hashes([text], seed) == [hashed]
    assert naive_text.xxh64(text, seed) == hashed


@given(st.lists(st.binary(max_size=80), max_size=6), st.integers(0, 2**64 - 1))
def test_texts_equal_the_naive_twin(texts, seed):
    assert hashes(texts, seed) == [naive_text.xxh64(text, seed) for text in texts]


@given(st.lists(st.text("0123456789abcdefABCDEFg", max_size=18).map(str.encode), max_size=6), st.sampled_from([0, 8]))
@example([b"FFFFFFFF", b"f" * 16, b"f" * 17, b""], 0)
def test_hexadecimal_numbers_equal_the_naive_twin(texts, digits):
    ids, good = np.empty(len(texts), np.uint64), np.empty(len(texts), np.bool_)
    parse_hexadecimal(*joined(texts), digits, ids, good)
    for text, number, is_good in zip(texts, ids.tolist(), good.tolist(), strict=True):
        state, value = naive_text.value_of("hexadecimal", digits, text)
        assert is_good == (state == "good")
        assert not is_good or number == value

"""XXH64 against its published values and its plain twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.kernels.xxhash import hash_texts
from tests import naive_text


def hashes(texts, seed):
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    ids = np.empty(len(texts), np.uint64)
    hash_texts(np.frombuffer(b"".join(texts), np.uint8), offsets, seed, ids)
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

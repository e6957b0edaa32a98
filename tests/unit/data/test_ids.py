"""Ids of text: what they are must never change."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.data.read.ids import text_id, text_ids
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


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()])
def test_any_arrow_text_will_do(kind: pa.DataType) -> None:
    texts = pa.array(["a", None, "bc", ""], pa.string()).cast(kind)
    expected = [text_id("n", "a"), None, text_id("n", "bc"), text_id("n", "")]
    assert text_ids("n", texts).to_pylist() == expected
    assert text_ids("n", texts.slice(1, 2)).to_pylist() == expected[1:3]
    assert text_ids("n", pa.chunked_array([texts, texts])).to_pylist() == expected * 2


def test_dictionaries_are_hashed_by_their_values() -> None:
    texts = pa.array(["a", None, "a", "b"]).dictionary_encode()
    assert text_ids("n", texts).to_pylist() == [text_id("n", "a"), None, text_id("n", "a"), text_id("n", "b")]
    assert text_ids("n", pa.array([], pa.string())).to_pylist() == []

"""Ids of text categories: XXH64 of the UTF-8 bytes, seeded by the hash of the name of their column or table.

The hash is public (https://xxhash.com) and will not change: `xxh64(text, seed=xxh64(name, seed=0))` in any xxHash
library gives the same ids, so that other programs can make them too. Some ids have a reserved meaning: numbers unlikely
to occur in data, unlike -1, which often stands for unknown.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

RARE_ID = 0x52_61_72_65_5F_49_64_21
"""The id that replaces rare ids."""
NULL_ID = 0x4E_75_6C_6C_5F_49_64_21
"""The id of a null, of whatever type; an integer of the data that equals it is refused."""
PADDING_ID = 0x50_61_64_64_5F_49_64_21
"""The id of a padding that is a text where all other ids are integers, until it is left out."""


def text_id(name: str, text: str) -> int:
    """Return the id of a category; `name` is its column, or the table that several columns read."""
    return _hash(text.encode(), seed_of(name))


def text_ids(name: str, texts: Any) -> Any:
    """Return the ids of an Arrow array of text or bytes as an Arrow array of uint64, null where the text is null."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if pa.types.is_dictionary(texts.type):
        return text_ids(name, texts.dictionary).take(texts.indices)
    ids = np.empty(len(texts), np.uint64)
    _hash_texts(*text_buffers(texts), seed_of(name), ids)
    return pa.array(ids, mask=texts.is_null().to_numpy(zero_copy_only=False) if texts.null_count else None)


def text_buffers(texts: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of an Arrow array of n texts, and their bounds [n + 1] from 0; a null is as an empty text."""
    texts = texts.cast(pa.large_binary())
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(texts) + 1, 8 * texts.offset)
    content = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    return content, bounds - bounds[0] if bounds[0] else bounds


def seed_of(name: str) -> int:
    """Return the seed for the hashes of texts of a column or table."""
    return _hash(name.encode(), 0)


def _hash(text: bytes, seed: int) -> int:
    ids = np.empty(1, np.uint64)
    _hash_texts(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64), seed, ids)
    return int(ids[0])


def _hash_texts(data: NDArray[np.uint8], offsets: NDArray[np.int64], seed: int, ids: NDArray[np.uint64]) -> None:
    # Most data holds no text, and numba takes half a second to import.
    from persia_cli.kernels.batch.text import hash_texts

    hash_texts(data, offsets, np.uint64(seed), ids)

"""A file whose checksum is computed while it is read."""

import io
import random

import pytest
from xxhash import xxh128

from persia_cli.storage.hashed_source import HashedSource


class Slowly(io.BytesIO):
    """Gives at most some bytes at a time, as sockets and large files do."""

    def read(self, size: int = -1) -> bytes:
        return super().read(min(size, 7) if size >= 0 else 7)


@pytest.mark.parametrize("stream", [io.BytesIO, Slowly])
def test_content_and_checksum_are_those_of_the_file(stream):
    rng = random.Random(3)
    for size in (0, 1, 6, 7, 8, 1000):
        content, counted = rng.randbytes(size), []
        with HashedSource(stream(content), counted.append) as source:
            read = b"".join(source.read(rng.randrange(1, 40)) for _ in range(rng.randrange(4)))
            assert content.startswith(read)
            assert source.finish() == xxh128(content).hexdigest()
        assert sum(counted) == size

"""A file whose checksum is computed while it is read."""

import io
import random
import threading

import pytest
from blake3 import blake3

from persia_cli.storage import hashed_source
from persia_cli.storage.hashed_source import PARTS_BEHIND, HashedSource


class Slowly(io.BytesIO):
    """Gives at most some bytes at a time, as sockets and large files do."""

    def read(self, size: int = -1) -> bytes:
        return super().read(min(size, 7) if size >= 0 else 7)


@pytest.mark.parametrize("stream", [io.BytesIO, Slowly])
def test_what_is_read_and_the_checksum_are_those_of_the_file(stream):
    rng = random.Random(3)
    for size in (0, 1, 6, 7, 8, 1000):
        content, counted = rng.randbytes(size), []
        with HashedSource(stream(content), counted.append) as source:
            read = b"".join(source.read(rng.randrange(1, 40)) for _ in range(rng.randrange(4)))
            assert content.startswith(read)
            assert source.finish() == blake3(content).hexdigest()
        assert sum(counted) == size


def test_reading_waits_for_a_checksum_that_is_behind(monkeypatch):
    go_on, taken = threading.Event(), []

    class Digest:
        def update(self, content: bytes) -> None:
            go_on.wait(30)
            taken.append(content)

        def hexdigest(self) -> str:
            return "done"

    monkeypatch.setattr(hashed_source, "blake3", Digest)
    with HashedSource(io.BytesIO(bytes(100)), lambda nbytes: None) as source:
        read = []

        def read_on() -> None:
            for _ in range(PARTS_BEHIND + 1):
                source.read(1)
                read.append(1)

        reader = threading.Thread(target=read_on)
        reader.start()
        while len(read) < PARTS_BEHIND:
            reader.join(0.01)
        reader.join(0.2)
        assert reader.is_alive()
        assert len(read) == PARTS_BEHIND, "all was read while nothing was hashed"
        go_on.set()
        reader.join(30)
        assert source.finish() == "done"
    assert len(b"".join(taken)) == 100


def test_an_error_of_the_stream_is_raised_and_the_thread_ends():
    class Broken:
        def read(self, size: int) -> bytes:
            raise OSError(5, "input/output error")

    with pytest.raises(OSError, match="input/output"), HashedSource(Broken(), lambda nbytes: None) as source:
        source.read(4)

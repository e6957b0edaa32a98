"""Memory that processes share: found by name, refused where it is none, gone with its last user; and its blocks."""

import fcntl
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from persia_cli.errors import WireError
from persia_cli.wire.frames import MalformedMessage, decode
from persia_cli.wire.messages import PushGradients
from persia_cli.wire.shared_memory import CELLS, DATA_START, GRAIN, Arena, create_segment, open_segment, share_memory

SIZE = 1 << 20
LENDER = """
import sys

import numpy as np

from persia_cli.wire.frames import encode
from persia_cli.wire.shared_memory import share_memory
from persia_cli.wire.messages import PushGradients
from persia_cli.wire.message import BatchId

memory = share_memory()
arrays = [np.full((5000, 8), 7, np.uint8)]
frames = encode(1, PushGradients(BatchId(0, 0, 0), 0, arrays), memory.lend(arrays))
print(*(frame.hex() for frame in frames), flush=True)
sys.stdin.read()
"""


def open_files() -> set[str]:
    """The identifiers of this process's files."""
    return {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def mapped(token: str) -> bool:
    return token in Path("/proc/self/maps").read_text()


def test_both_processes_see_the_same_memory() -> None:
    made = create_segment(SIZE)
    found = open_segment(made.name)
    assert found.nbytes == SIZE
    assert found.address != made.address
    made.bytes_from(DATA_START, None)[:3] = [1, 2, 3]
    assert found.bytes_from(DATA_START, None)[:3].tolist() == [1, 2, 3]
    found.cells[CELLS - 1] = 7
    assert made.cells[CELLS - 1] == 7


def test_memory_stays_while_an_array_lives_and_goes_with_the_last() -> None:
    made = create_segment(SIZE)
    name, token = made.name, made.name.rpartition("/")[2]
    view = made.bytes_from(DATA_START, None)[2:4]
    view[...] = 9
    del made
    gc.collect()
    assert view.tolist() == [9, 9]
    assert mapped(token)
    del view
    gc.collect()
    assert not mapped(token)
    assert not any(token in file for file in open_files())
    with pytest.raises(WireError):
        open_segment(name)


def test_mapped_memory_cannot_be_shrunk() -> None:
    made = create_segment(SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(int(made.name.split("/")[1]), 0)


@pytest.mark.parametrize(
    "name", ["", "1/2", "../../etc/passwd", "0/1/0123456789abcdef", "1/x/0123456789abcdef", "1/2/3"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(WireError, match="not a valid name of shared memory"):
        open_segment(name)


def test_a_process_that_has_exited_is_named() -> None:
    with pytest.raises(WireError, match=r"process 4194305, .* has ended.*set cluster\.shared_memory=false"):
        open_segment("4194305/3/0123456789abcdef")


def test_other_files_are_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file, pytest.raises(WireError, match="does not exist any more"):
        open_segment(f"{os.getpid()}/{file.fileno()}/0123456789abcdef")


def test_memory_that_could_shrink_is_not_mapped() -> None:
    file = os.memfd_create("persia-0123456789abcdef", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, SIZE)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        with pytest.raises(WireError, match="is not sealed"):
            open_segment(f"{os.getpid()}/{file}/0123456789abcdef")
    finally:
        os.close(file)


def test_memory_lent_by_a_killed_process_stays_readable() -> None:
    lender = subprocess.Popen([sys.executable, "-c", LENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert lender.stdout is not None
        frames = [bytes.fromhex(line) for line in lender.stdout.readline().split()]
        receiver = share_memory()
        assert receiver is not None
        _, message = decode(frames, receiver)
        assert isinstance(message, PushGradients)
        lender.kill()
    finally:
        lender.communicate()
    assert len(frames) == 2
    assert message.groups[0].tolist() == [[7] * 8] * 5000
    with pytest.raises(MalformedMessage, match=r"cluster\.shared_memory=false"):
        decode(frames, share_memory())


ROOM = 1 << 17
SIZES = st.integers(1, 40_000)


@settings(max_examples=200)
@example(moves=[(1025, 0), (4097, 0), (4097, 5), (5633, 0), (36865, 0), (36865, 1), (30721, 0)])
@given(moves=st.lists(st.tuples(SIZES, st.integers(0, 9)), max_size=80))
def test_arrays_in_use_are_not_overwritten(moves: list[tuple[int, int]]) -> None:
    arena = Arena(create_segment(DATA_START + ROOM))
    living: list[tuple[np.ndarray, int]] = []
    for number, (size, drop) in enumerate(moves):
        array = arena.empty((size,), np.uint8)
        if array is not None:
            assert array.ctypes.data % GRAIN == 0
            array[...] = number
            living.append((array, number))
        del array  # or the dropped array would live on, uncounted, during the next request
        if living and drop < 5:
            living.pop(drop % len(living))
        assert all((each == mark).all() for each, mark in living)
    living.clear()
    assert arena.empty((ROOM,), np.uint8) is not None, "no block is lost"


def test_a_block_is_used_again_once_the_last_view_is_deleted() -> None:
    arena = Arena(create_segment(DATA_START + 4096))
    array = arena.empty((4096,), np.uint8)
    assert array is not None
    place, view = array.ctypes.data, array.reshape(64, 64)[3:].view(np.uint32)
    del array
    assert arena.empty((1,), np.uint8) is None
    del view
    again = arena.empty((4000,), np.uint8)
    assert again is not None
    assert again.ctypes.data == place


def test_threads_do_not_get_each_others_memory() -> None:
    arena = Arena(create_segment(DATA_START + (1 << 20)))
    wrong: list[int] = []

    def work(mark: int) -> None:
        for size in range(1, 500):
            array = arena.empty((size * 7,), np.uint8)
            if array is None:
                continue
            array[...] = mark
            if not (array == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

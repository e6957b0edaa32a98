"""Blocks of shared memory: never two arrays in one place, and none lost."""

import threading

import hypothesis.strategies as st
import numpy as np
from hypothesis import example, given, settings

from persia_cli.wire.shared_memory import DATA_START, GRAIN, Arena, block_size, create_segment

ROOM = 1 << 17
SIZES = st.integers(1, 40_000)


@given(nbytes=st.integers(0, 1 << 40))
def test_block_sizes_are_few_and_little_is_wasted(nbytes: int) -> None:
    size = block_size(nbytes)
    assert size >= max(nbytes, 1)
    assert size % GRAIN == 0
    assert size <= max(GRAIN, nbytes * 9 / 8 + GRAIN)
    assert block_size(size) == size


def largest_gap(arena: Arena, living: list[np.ndarray]) -> int:
    """Bytes of the longest free block."""
    first = arena.segment.address + DATA_START
    # An array refers to the object of its block, which has the block's size.
    sizes = [array.base._keeper._taken[0] for array in living]
    taken = sorted((array.ctypes.data, array.ctypes.data + size) for array, size in zip(living, sizes, strict=True))
    starts = [first, *(end for _, end in taken)]
    ends = [*(start for start, _ in taken), arena.segment.address + arena.segment.nbytes]
    return max(end - start for start, end in zip(starts, ends, strict=True))


@settings(max_examples=200)
@example(moves=[(1025, 0), (4097, 0), (4097, 5), (5633, 0), (36865, 0), (36865, 1), (30721, 0)])
@given(moves=st.lists(st.tuples(SIZES, st.integers(0, 9)), max_size=80))
def test_arrays_in_use_are_not_overwritten(moves: list[tuple[int, int]]) -> None:
    arena = Arena(create_segment(DATA_START + ROOM))
    living: list[tuple[np.ndarray, int]] = []
    for number, (size, drop) in enumerate(moves):
        array = arena.empty((size,), np.uint8)
        if array is None:
            assert block_size(size) > largest_gap(arena, [each for each, _ in living])
        else:
            assert array.ctypes.data % GRAIN == 0
            array[...] = number
            living.append((array, number))
        del array  # or the dropped array would live on, uncounted, during the next request
        if living and drop < 5:
            living.pop(drop % len(living))
        assert all((each == mark).all() for each, mark in living)


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


def test_arrays_of_changing_sizes_take_at_most_twice_their_size() -> None:
    arena = Arena(create_segment(DATA_START + (1 << 24)))
    random = np.random.default_rng(3)
    living: list[np.ndarray | None] = [None] * 10
    for number in range(2000):
        living[number % 10] = arena.empty((int(random.integers(90_000, 130_000)),), np.uint8)
    assert all(array is not None for array in living)
    assert arena.used < 2.5 * 10 * 130_000


def test_a_small_array_may_take_a_large_block_when_nothing_else_is_left() -> None:
    arena = Arena(create_segment(DATA_START + 4096))
    assert arena.empty((4096,), np.uint8) is not None
    assert arena.empty((16, 4), np.float32) is not None


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

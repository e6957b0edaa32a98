"""Blocks of shared memory: never two arrays in one place, and none lost."""

import threading

import hypothesis.strategies as st
import numpy as np
from hypothesis import example, given, settings

from persia_cli.wire.shared_memory import DATA_START, GRAIN, Arena, create_segment

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

"""HyperLogLog's registers against their plain twin."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.kernels.registers import raise_registers
from tests import naive

SHIFTED = st.builds(lambda word, by: word >> by, st.integers(0, 2**64 - 1), st.integers(0, 64))
"""Keys with runs of zeros of every length."""


@given(st.lists(SHIFTED, max_size=20), st.sampled_from([1, 4, 10]))
def test_registers_equal_the_naive_twin(keys, bits):
    registers = np.zeros(2**bits, np.uint8)
    for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
        raise_registers(np.array(half, np.uint64), bits, registers)
    assert registers.tolist() == naive.registers_of(keys, bits)

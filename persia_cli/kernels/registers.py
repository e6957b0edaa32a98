"""The registers of HyperLogLog, an estimate of the number of distinct keys.

Flajolet, Fusy, Gandouet and Meunier, "HyperLogLog: the analysis of a near-optimal cardinality estimation algorithm",
2007.
"""

import numpy as np
from numba import types

from persia_cli.kernels.compile import kernel, read, write

U8, U64, I64 = types.uint8, types.uint64, types.int64
ONE, TOP = np.uint64(1), np.uint64(1) << np.uint64(63)


@kernel(types.void(read(U64), I64, write(U8)))
def raise_registers(keys, bits, registers):
    """Raise each key's register to 1 + the number of leading zeros of the key's other bits, if it is lower.

    The first `bits` bits of a key (1 to 63) are the number of its register. Keys must be hashed (`hash_ids`).
    """
    part, rest = np.uint64(bits), np.uint64(64 - bits)
    guard = ONE << (part - ONE)
    for i in range(keys.size):
        register = keys[i] >> rest
        tail = keys[i] << part | guard
        rank = 1
        while tail & TOP == 0:
            tail <<= ONE
            rank += 1
        if rank > registers[register]:
            registers[register] = rank

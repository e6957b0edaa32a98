"""Ids of texts that lie in one array, as in Arrow: their hash, or their value as a hexadecimal number.

The hash is XXH64 (Yann Collet, https://xxhash.com, specification of XXH64).
"""

import numpy as np
from numba import types

from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import load64

U8, U64, I64, BOOL = types.uint8, types.uint64, types.int64, types.boolean
P1, P2, P3, P4, P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
NOT_HEX = np.uint8(255)
HEX = np.full(256, NOT_HEX, np.uint8)
HEX[[*b"0123456789abcdef"]] = np.arange(16)
HEX[[*b"ABCDEF"]] = np.arange(10, 16)


@inlined
def _turn(x, bits):
    """Rotate 64 bits to the left."""
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@inlined
def _round(lane, word):
    return _turn(lane + word * P2, 31) * P1


@inlined
def _merge(state, lane):
    return (state ^ _round(np.uint64(0), lane)) * P1 + P4


@helper
def xxh64(data, start, size, seed):
    """Return the hash of data[start : start + size] as uint64; all but the bytes are uint64."""
    at, stop = start, start + size
    if size >= np.uint64(32):
        a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while at + np.uint64(32) <= stop:
            a = _round(a, load64(data, at))
            b = _round(b, load64(data, at + np.uint64(8)))
            c = _round(c, load64(data, at + np.uint64(16)))
            d = _round(d, load64(data, at + np.uint64(24)))
            at += np.uint64(32)
        state = _turn(a, 1) + _turn(b, 7) + _turn(c, 12) + _turn(d, 18)
        state = _merge(_merge(_merge(_merge(state, a), b), c), d)
    else:
        state = seed + P5
    state += size
    while at + np.uint64(8) <= stop:
        state = _turn(state ^ _round(np.uint64(0), load64(data, at)), 27) * P1 + P4
        at += np.uint64(8)
    if at + np.uint64(4) <= stop:
        word = np.uint64(0)
        for byte in range(4):
            word |= np.uint64(data[at + np.uint64(byte)]) << np.uint64(8 * byte)
        state = _turn(state ^ (word * P1), 23) * P2 + P3
        at += np.uint64(4)
    while at < stop:
        state = _turn(state ^ (np.uint64(data[at]) * P5), 11) * P1
        at += np.uint64(1)
    state = (state ^ (state >> np.uint64(33))) * P2
    state = (state ^ (state >> np.uint64(29))) * P3
    return state ^ (state >> np.uint64(32))


@kernel(types.void(read(U8), read(I64), U64, write(U64)))
def hash_texts(data, offsets, seed, ids):
    """Write the hash of each text; offsets [n + 1] are the bounds of the texts in `data`, as in an Arrow array."""
    for i in range(ids.size):
        start = np.uint64(offsets[i])
        ids[i] = xxh64(data, start, np.uint64(offsets[i + 1]) - start, seed)


@kernel(types.void(read(U8), read(I64), U64, write(U64), write(BOOL)))
def parse_hexadecimal(data, offsets, digits, ids, good):
    """Write the number of each text, and True if it has exactly `digits` hexadecimal digits (0: 1 to 16)."""
    for i in range(ids.size):
        start, stop = np.uint64(offsets[i]), np.uint64(offsets[i + 1])
        value, seen = np.uint64(0), np.uint8(0)
        for at in range(start, stop):
            digit = HEX[data[at]]
            seen |= digit
            value = (value << np.uint64(4)) | np.uint64(digit)
        size = stop - start
        fits = size == digits if digits else np.uint64(0) < size <= np.uint64(16)
        ids[i], good[i] = value, fits and seen != NOT_HEX


_BLANK, _OPEN_QUOTE, _INNER_RETURN = np.uint8(1), np.uint8(2), np.uint8(3)
_NEWLINE, _RETURN = np.uint8(ord("\n")), np.uint8(ord("\r"))
_START, _PLAIN, _QUOTED, _CLOSED = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(3)


@inlined
def _first(flaw, other):
    return flaw if flaw else other


@kernel(I64(read(U8), U8, I64, I64, BOOL, write(I64), write(I64), write(I64), write(U8)))
def find_rows(data, delimiter, second, quote, spanning, starts, lines, fields, flaws):
    """Write where each row begins, its line from 0, its number of fields and its flaw; return the number n of rows.

    `starts` and `lines` [n + 1] also have the end of the last row.
    Flaws are 1 for an empty row, 2 for a quote that is not closed where its field ends, and 3 for a carriage return
    inside the row. `second` is the second byte of the delimiter, or -1. `quote` is -1 if there are no quoted fields;
    with `spanning`, line ends may stand in quotes. The last row of `data` is left out if its end is not there.
    """
    row, line, count, at = 0, 0, 1, np.uint64(0)
    starts[0] = lines[0] = 0
    state, flaw = _START, np.uint8(0)
    while at < data.size:
        byte = data[at]
        at += np.uint64(1)
        if state == _QUOTED:
            if byte == quote:
                state = _CLOSED
                continue
            if spanning or byte != _NEWLINE:
                line += byte == _NEWLINE
                continue
            flaw = _first(flaw, _OPEN_QUOTE)
        if byte == delimiter and (second < 0 or (at < data.size and data[at] == second)):
            at += np.uint64(second >= 0)
            count += 1
            state = _START
        elif byte == _NEWLINE:
            if state == _START and count == 1 and flaw == np.uint8(0):
                flaw = _BLANK
            line += 1
            fields[row], flaws[row] = count, flaw
            row, count, state, flaw = row + 1, 1, _START, np.uint8(0)
            starts[row], lines[row] = at, line
        elif byte == _RETURN:
            # Programs do not agree on whether one inside a line ends a row.
            if at < data.size and data[at] != _NEWLINE:
                flaw = _first(flaw, _INNER_RETURN)
        elif byte == quote and state != _PLAIN:
            state = _QUOTED
        else:
            if state == _CLOSED:
                flaw = _first(flaw, _OPEN_QUOTE)
            state = _PLAIN
            # Most bytes are in the middle of a field.
            while at < data.size and data[at] > _RETURN and data[at] != delimiter:
                at += np.uint64(1)
    return row

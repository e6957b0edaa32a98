"""The parsing of one field of delimited text to a 64-bit value: integer, hexadecimal id, decimal number or text."""

import numpy as np
from numba import types

from persia_cli.kernels.compile import helper
from persia_cli.kernels.intrinsics import bits_of, load64
from persia_cli.kernels.xxhash import xxh64

U8, U64, F64 = types.uint8, types.uint64, types.float64

SKIP, INTEGER, HEXADECIMAL, NUMBER, TEXT, BYTES = (np.uint8(kind) for kind in range(6))
"""The kinds of fields. The value of BYTES is its position in the block: start << 32 | size."""
GOOD, MISSING, ESCAPED, LONG_NUMBER, WRONG, NOT_UTF8, NUL, TOO_LONG = (np.uint8(state) for state in range(8))
"""The results of parsing. From WRONG on, the line is bad. ESCAPED text has doubled quotes and LONG_NUMBER more digits
than a float64: both are left to the caller and have the value of BYTES."""
LONGEST = np.uint64(1 << 16)
"""Largest number of bytes of a field."""

ZERO, ONE, EIGHT, TEN = np.uint64(0), np.uint64(1), np.uint64(8), np.uint64(10)
NOT_HEX = np.uint8(255)
HEX = np.full(256, NOT_HEX, np.uint8)
HEX[[*b"0123456789abcdef"]] = np.arange(16)
HEX[[*b"ABCDEF"]] = np.arange(10, 16)
POWERS = 10.0 ** np.arange(23)
"""Powers of ten that are exact in float64."""
EXACT = np.uint64(2**53)
HIGH_BITS, LOW_BITS = np.uint64(0x8080808080808080), np.uint64(0x0101010101010101)
MINUS, PLUS, POINT = np.uint8(ord("-")), np.uint8(ord("+")), np.uint8(ord("."))


@helper
def integer(data, start, stop):
    """Return (value, state) of an integer: an optional minus and at most 18 digits, so that it fits 64 bits."""
    negative = data[start] == MINUS
    if negative:
        start += ONE
    if stop <= start or stop - start > np.uint64(18):
        return ZERO, WRONG
    value = ZERO
    for at in range(start, stop):
        digit = data[at] - np.uint8(48)
        if digit > np.uint8(9):
            return ZERO, WRONG
        value = value * TEN + np.uint64(digit)
    return (ZERO - value if negative else value), GOOD


@helper
def hexadecimal(data, start, stop, digits):
    """Return (value, state) of exactly `digits` hexadecimal digits, or of 1 to 16 where `digits` is 0."""
    size = stop - start
    if (size != digits and digits != ZERO) or size > np.uint64(16):
        return ZERO, WRONG
    value, seen = ZERO, np.uint8(0)
    for at in range(start, stop):
        digit = HEX[data[at]]
        seen |= digit
        value = (value << np.uint64(4)) | np.uint64(digit)
    return (ZERO, WRONG) if seen == NOT_HEX else (value, GOOD)


@helper
def number(data, start, stop):
    """Return (bits of a float64, state) of a decimal number such as -1.5e3.

    Exact where digits and power of ten are exact in float64 (W. D. Clinger, "How to read floating point numbers
    accurately", 1990, the fast case); LONG_NUMBER elsewhere.
    """
    first = start
    negative = data[start] == MINUS
    if negative or data[start] == PLUS:
        start += ONE
    mantissa, power, digits, fraction = ZERO, np.int64(0), np.int64(0), False
    long = False
    while start < stop:
        digit = data[start] - np.uint8(48)
        if digit <= np.uint8(9):
            long |= mantissa >= EXACT
            mantissa = mantissa * TEN + np.uint64(digit)
            digits += 1
            power -= np.int64(fraction)
        elif data[start] == POINT and not fraction:
            fraction = True
        else:
            break
        start += ONE
    if digits == 0:
        return ZERO, WRONG
    if start < stop:
        if (data[start] | np.uint8(32)) != np.uint8(ord("e")):
            return ZERO, WRONG
        start += ONE
        plus = data[start] == PLUS
        start += np.uint64(plus)
        exponent, state = integer(data, start, stop)
        if state != GOOD or (plus and data[start] == MINUS):
            return ZERO, WRONG
        power += np.int64(exponent)
        long |= np.int64(exponent) > 1000 or np.int64(exponent) < -1000
    if long or mantissa > EXACT or power > 22 or power < -22:
        return (first << np.uint64(32)) | (stop - first), LONG_NUMBER
    value = np.float64(mantissa)
    value = value * POWERS[power] if power >= 0 else value / POWERS[-power]
    return bits_of(-value if negative else value), GOOD


@helper
def check_text(data, start, stop):
    """Return GOOD, NUL or NOT_UTF8 (Unicode 15, table 3-7: no overlong forms, no surrogates, at most U+10FFFF)."""
    while start < stop:
        if start + EIGHT <= stop:
            word = load64(data, start)
            if (word & HIGH_BITS) == ZERO and ((word - LOW_BITS) & ~word & HIGH_BITS) == ZERO:
                start += EIGHT
                continue
        byte = data[start]
        start += ONE
        if byte == 0:
            return NUL
        if byte < 0x80:
            continue
        low, high = np.uint8(0x80), np.uint8(0xBF)
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = np.uint8(0xA0)
            elif byte == 0xED:
                high = np.uint8(0x9F)
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = np.uint8(0x90)
            elif byte == 0xF4:
                high = np.uint8(0x8F)
        else:
            return NOT_UTF8
        for _ in range(more):
            if start >= stop or data[start] < low or data[start] > high:
                return NOT_UTF8
            low, high = np.uint8(0x80), np.uint8(0xBF)
            start += ONE
    return GOOD


@helper
def parse_field(kind, parameter, data, start, stop, escaped):
    """Return (64-bit value, state) of data[start:stop]; `parameter` is the seed of TEXT, the digits of HEXADECIMAL."""
    size = stop - start
    if size > LONGEST:
        return ZERO, TOO_LONG
    if size == ZERO:
        return ZERO, MISSING
    if kind == INTEGER:
        return integer(data, start, stop)
    if kind == HEXADECIMAL:
        return hexadecimal(data, start, stop, parameter)
    if kind == NUMBER:
        return number(data, start, stop)
    if kind == SKIP:
        return ZERO, GOOD
    state = check_text(data, start, stop)
    if state == GOOD and escaped:
        state = ESCAPED
    if kind == TEXT and state == GOOD:
        return xxh64(data, start, size, parameter), GOOD
    return (start << np.uint64(32)) | size, state

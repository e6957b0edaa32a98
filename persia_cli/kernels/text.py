"""The parsing of delimited text into columns of 64-bit values, in one pass over the bytes."""

import numpy as np
from numba import types

from persia_cli.kernels.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.fields import ONE, WRONG, ZERO, parse_field

U8, U64, I64 = types.uint8, types.uint64, types.int64

LINE_END, RETURN, QUOTE, SPACE = (np.uint8(ord(each)) for each in '\n\r" ')
NONE = np.uint64(256)
"""Value of a character that is not set."""
BLANK, OPEN_QUOTE, COMMENT = np.int64(-1), np.int64(-2), np.int64(-3)
"""Reasons why a line is not a row, other than its number of columns."""


@inlined
def _ends_field(data, at, first, second):
    """Return True if the delimiter (one or two characters) is at a position that is not the last byte of a line."""
    return np.uint64(data[at]) == first and (second == NONE or np.uint64(data[at + ONE]) == second)


@inlined
def _plain_field(data, at, first, second, strip):
    """Return the bounds of a field's value, and the end of the field: the delimiter or line end."""
    start = at
    if strip:
        while data[start] == SPACE:
            start += ONE
    while data[at] != LINE_END and not _ends_field(data, at, first, second):
        at += ONE
    stop = at
    if data[at] == LINE_END and stop > start and data[stop - ONE] == RETURN:
        stop -= ONE
    if strip:
        while stop > start and data[stop - ONE] == SPACE:
            stop -= ONE
    return start, stop, at


@helper
def _quoted_field(data, start, quote, strip):
    """Return the end of a quoted value, the end of its field, and True if it has doubled quotes."""
    at, escaped = start, False
    while data[at] != LINE_END:
        if np.uint64(data[at]) == quote:
            if np.uint64(data[at + ONE]) != quote:
                break
            escaped = True
            at += ONE
        at += ONE
    stop = at
    if data[at] != LINE_END:
        at += ONE
        if strip:
            while data[at] == SPACE:
                at += ONE
        if data[at] == RETURN and data[at + ONE] == LINE_END:
            at += ONE
    return stop, at, escaped


@kernel(types.void(read(U8), read(U64), read(U8), read(U64), write(U64), write(U8), write(I64), write(I64), write(I64)))
def parse_lines(data, rules, kinds, parameters, values, states, lines, reasons, counts):
    """Split whole lines into fields and parse them.

    `data` ends with a line end. `rules` are the delimiter's two characters, the quote, the first character of comments
    (each 256 if not set), and 1 if blanks around values are removed. `kinds` and `parameters` [C] describe the columns.
    `values` and `states` [C * N] are written column by column, where N is the number of lines. `lines` [N] gets the
    line number of each row from the front, and of each other line from the back. `reasons` [N] gets, from the back, why
    these are not rows: their number of columns, or BLANK, OPEN_QUOTE or COMMENT. `counts` gets the number of rows, of
    other lines, and of rows with a field that is WRONG or worse.
    """
    first, second, quote, comment, strip = rules[0], rules[1], rules[2], rules[3], rules[4] != ZERO
    columns, capacity = np.uint64(kinds.size), np.uint64(lines.size)
    width = ONE if second == NONE else np.uint64(2)
    row, others, wrong = ZERO, ZERO, np.int64(0)
    at, size, line = ZERO, np.uint64(data.size), np.int64(0)
    while at < size:
        reason = np.int64(0)
        if np.uint64(data[at]) == comment:
            reason = COMMENT
        elif data[at] == LINE_END or (data[at] == RETURN and data[at + ONE] == LINE_END):
            reason = BLANK
        column, worst = ZERO, np.uint8(0)
        while reason == 0:
            escaped = False
            if quote == NONE:
                start, stop, at = _plain_field(data, at, first, second, strip)
            else:
                start, stop, end = _plain_field(data, at, first, second, strip)
                if np.uint64(data[start]) == quote:
                    start += ONE
                    stop, end, escaped = _quoted_field(data, start, quote, strip)
                    if data[stop] == LINE_END or not (data[end] == LINE_END or _ends_field(data, end, first, second)):
                        reason = OPEN_QUOTE
                at = end
            if reason == 0 and column < columns:
                cell = column * capacity + row
                values[cell], states[cell] = parse_field(kinds[column], parameters[column], data, start, stop, escaped)
                worst = max(worst, states[cell])
            column += ONE
            if reason == 0:
                if data[at] == LINE_END:
                    reason = np.int64(column)
                else:
                    at += width
        while data[at] != LINE_END:
            at += ONE
        at += ONE
        if reason == np.int64(columns):
            lines[row] = line
            row += ONE
            wrong += np.int64(worst >= WRONG)
        else:
            others += ONE
            lines[capacity - others] = line
            reasons[capacity - others] = reason
        line += np.int64(1)
    counts[0], counts[1], counts[2] = row, others, wrong

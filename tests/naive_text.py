"""Slow, plain twins of the text readers: the result of each, computed in the obvious way."""

import re

import numpy as np

MASK = 2**64 - 1
P1, P2, P3 = 11400714785074694791, 14029467366897019727, 1609587929392839161
P4, P5 = 9650029242287828579, 2870177450012600261


def xxh64(data, seed):
    """The hash of bytes, by the specification of XXH64."""

    def turn(x, bits):
        return (x << bits | x >> 64 - bits) & MASK

    def mix(lane, word):
        return turn((lane + word * P2) & MASK, 31) * P1 & MASK

    left = list(data)
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) // 32 * 32, 8)]
    state = (seed + P5) & MASK
    if words:
        lanes = [(seed + add) & MASK for add in (P1 + P2, P2, 0, -P1)]
        for at, word in enumerate(words):
            lanes[at % 4] = mix(lanes[at % 4], word)
        state = sum(turn(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            state = ((state ^ mix(0, lane)) * P1 + P4) & MASK
        left = left[len(words) * 8 :]
    state = (state + len(data)) & MASK
    while len(left) >= 8:
        word, left = int.from_bytes(left[:8], "little"), left[8:]
        state = (turn(state ^ mix(0, word), 27) * P1 + P4) & MASK
    if len(left) >= 4:
        word, left = int.from_bytes(left[:4], "little"), left[4:]
        state = (turn(state ^ word * P1 & MASK, 23) * P2 + P3) & MASK
    for byte in left:
        state = turn(state ^ byte * P5 & MASK, 11) * P1 & MASK
    state = (state ^ state >> 33) * P2 & MASK
    state = (state ^ state >> 29) * P3 & MASK
    return state ^ state >> 32


def split_line(line, delimiter, quoted, stripped):
    """The fields of a line without its end; a word for its flaw otherwise."""
    fields, rest = [], line
    while True:
        if quoted and rest.startswith(b'"'):
            found = re.match(rb'"((?:[^"]|"")*)"(?!")', rest)
            if found is None:
                return "quote"
            fields.append(found[1].replace(b'""', b'"'))
            rest = rest[found.end() :]
            if rest and not rest.startswith(delimiter):
                return "return" if rest.startswith(b"\r") else "quote"
            ended, rest = not rest, rest[len(delimiter) :]
        else:
            field, found, rest = rest.partition(delimiter)
            if b"\r" in field:
                return "return"
            fields.append(field)
            ended = not found
        if ended:
            return [field.strip(b" ") for field in fields] if stripped else fields


def split_lines(data, columns, delimiter=b"\t", quoted=False, stripped=False, comment=None):
    """(rows, others): rows of (line, fields), and {line: number of fields, or a word for its flaw}."""
    rows, others = [], {}
    for number, line in enumerate(data.split(b"\n")[:-1]):
        if comment is not None and line.startswith(comment):
            others[number] = "comment"
            continue
        line = line.removesuffix(b"\r")
        if not line:
            others[number] = "blank"
            continue
        fields = split_line(line, delimiter, quoted, stripped)
        if isinstance(fields, str):
            others[number] = fields
        elif len(fields) != columns:
            others[number] = len(fields)
        else:
            rows.append((number, fields))
    return rows, others


def value_of(kind, parameter, field):
    """(state, value) of a field, by name; the value of bytes is the text itself."""
    if not field:
        return "missing", None
    if kind == "integer":
        return ("good", int(field)) if re.fullmatch(rb"-?[0-9]{1,18}", field[:30]) else ("wrong", None)
    if kind == "hexadecimal":
        digits = rf"{{{parameter}}}" if parameter else "{1,16}"
        return ("good", int(field, 16)) if re.fullmatch(f"[0-9a-fA-F]{digits}".encode(), field) else ("wrong", None)
    if kind == "number":
        decimal, exponent = rb"[+-]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+)", rb"(?:[eE][+-]?[0-9]{1,18})?"
        return ("good", float(field)) if re.fullmatch(decimal + exponent, field) else ("wrong", None)
    try:
        field.decode()
        cut = len(field)
    except UnicodeDecodeError as error:
        cut = error.start
    if cut < len(field):
        return "not utf-8", None
    if b"\0" in field:
        return "nul", None
    return "good", (xxh64(field, parameter) if kind == "text" else field)


def counts_of(sketch_lines, ids, key_of):
    """{id: count-min estimate} of 4 counters in a line, each of which stops at 255."""
    counters = np.zeros((sketch_lines, 4, 16), np.int64)

    def place(id_):
        key = key_of(id_)
        return (key >> 32) * sketch_lines >> 32, [key >> 4 * quarter & 15 for quarter in range(4)]

    for id_ in ids:
        line, chosen = place(id_)
        for quarter, counter in enumerate(chosen):
            counters[line, quarter, counter] = min(counters[line, quarter, counter] + 1, 255)
    found = {}
    for id_ in set(ids):
        line, chosen = place(id_)
        found[id_] = min(int(counters[line, quarter, counter]) for quarter, counter in enumerate(chosen))
    return found

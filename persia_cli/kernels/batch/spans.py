"""Spans of a user's earlier events in a store that is in order of user, time and place."""

from numba import types

from persia_cli.kernels.toolchain.compile import kernel, read, write

U64, I64 = types.uint64, types.int64


@kernel(types.void(read(U64), read(I64), read(I64), read(I64), read(U64), read(I64), read(I64), write(I64), write(I64)))
def find_events(users, starts, times, places, user, asked, place, first, last):
    """Write the span [first, last) of each sample's events that come before it; an empty one for an unknown user.

    Events starts[u] up to starts[u + 1] are those of users[u], ascending by time and place. An event comes before a
    sample if its time is less than `asked`, or if it is equal and the event's place is less than the sample's `place`.
    """
    for i in range(user.size):
        low, high = 0, users.size
        while low < high:
            middle = (low + high) // 2
            if users[middle] < user[i]:
                low = middle + 1
            else:
                high = middle
        if low == users.size or users[low] != user[i]:
            first[i] = last[i] = 0
            continue
        first[i] = starts[low]
        before, after = starts[low], starts[low + 1]
        while before < after:
            middle = (before + after) // 2
            if times[middle] < asked[i] or (times[middle] == asked[i] and places[middle] < place[i]):
                before = middle + 1
            else:
                after = middle
        last[i] = before


@kernel(types.void(read(U64), read(I64), read(I64), write(U64)))
def copy_spans(values, first, last, copied):
    """Write the values of spans [first, last), one after the other."""
    at = 0
    for i in range(first.size):
        for j in range(first[i], last[i]):
            copied[at] = values[j]
            at += 1

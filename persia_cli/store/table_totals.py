"""The totals of all tables over several servers, or as several replicas have received them."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from msgspec.structs import astuple

from persia_cli.wire.parts import TableTotals


def together(totals: Iterable[TableTotals]) -> TableTotals:
    """Return the sum of the totals of several servers."""
    return TableTotals(*map(sum, zip(*map(astuple, totals), strict=True)))


def latest(received: Iterable[Sequence[TableTotals]]) -> tuple[TableTotals, ...]:
    """Return the newest totals of each server: the maximum of each counter, since none decreases.

    Totals are merged server by server: of two look-ups at the same time, each may be the last one at another server.
    """
    of_servers = zip_longest(*received, fillvalue=TableTotals())
    return tuple(TableTotals(*map(max, zip(*map(astuple, server), strict=True))) for server in of_servers)

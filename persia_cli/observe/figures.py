"""The figures that replicas send to the coordinator, which checks them on arrival."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec.structs import astuple

from persia_cli.config.schema.mode import MAX_STALENESS
from persia_cli.errors import WireError
from persia_cli.wire.parts import TableTotals

Figures = TypeVar("Figures")
Staleness = Annotated[int, msgspec.Meta(ge=0, le=MAX_STALENESS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Steps = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class ReplicaFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The resources that a replica has used, and its counters, since it started."""

    cpu_s: float
    """CPU time in seconds."""
    rss: int
    """Resident memory in bytes."""
    messages: dict[str, int] = {}
    """Irregular events of the wire, by kind."""
    updates: dict[str, int] = {}
    """Updates of an embedding server, by outcome."""
    tables: dict[str, dict[str, int]] = {}
    """Counters of each table on an embedding server."""
    counts: dict[str, int] = {}
    """Steps that a data loader sent and values that it had to change; steps that an NN worker scored; bytes and rows
    that an embedding server has loaded from a checkpoint."""


class IntervalFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of a rank for the interval between two lines of metrics, without its scores."""

    split: Literal["train", "eval"]
    last: int
    """The step after the interval's last."""
    samples: int
    steps: int
    staleness: dict[Staleness, Steps]
    """Steps of training by the staleness of their rows, as measured from the servers' watermarks."""
    seconds: Annotated[float, msgspec.Meta(ge=0.0)]
    """Duration by the rank's own clock, from the end of the previous interval or the begin of the phase."""
    loss_sum: float
    """Sum of the loss of each sample times its weight."""
    loss_scale: float | None = None
    """Last factor of the loss, in float16."""
    steps_skipped: int = 0
    """Number of steps so far in which gradients overflowed float16, so that dense weights were not updated."""
    ids: Count = 0
    """Number of ids looked up, repeats included; an id of a hash stack counts once per round."""
    unknown: Count = 0
    """Number of these ids that had no row."""
    tables: tuple[TableTotals, ...] = ()
    """Counters of each embedding server, as of its answer to the last of these look-ups."""
    more: bool = False
    """True if more reports of the same evaluation follow."""


for _kind in (ReplicaFigures, IntervalFigures):
    # Prepared at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
    msgspec.json.Decoder(_kind)


def read_figures(kind: type[Figures], body: Any) -> Figures:
    """Return the figures of this kind in a message's body; raises WireError if they are not valid."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise WireError(f"the figures in this message cannot be read: {error}") from error


def together(totals: Iterable[TableTotals]) -> TableTotals:
    """Return the sum of the totals of several servers."""
    return TableTotals(*map(sum, zip(*map(astuple, totals), strict=True)))


def latest(received: Iterable[Sequence[TableTotals]]) -> tuple[TableTotals, ...]:
    """Return the newest totals of each server: the maximum of each counter, since none decreases.

    Totals are merged server by server: of two look-ups at the same time, each may be the last one at another server.
    """
    of_servers = zip_longest(*received, fillvalue=TableTotals())
    return tuple(TableTotals(*map(max, zip(*map(astuple, server), strict=True))) for server in of_servers)

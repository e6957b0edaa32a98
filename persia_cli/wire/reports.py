"""The statistics that replicas report to the coordinator."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Annotated, Literal

import msgspec
from msgspec.structs import astuple

from persia_cli.wire.message import Count, FieldSet, TableTotals

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


SENT_AGAIN = "batches_sent_again"
"""Count of the batches whose ids a data loader has sent again after the death of an embedding worker."""


FINISHED = "finished"
"""Count of an embedding server: requests of an earlier process that this one has finished, 0 or 1."""


class Counters(FieldSet, frozen=True):
    """The counters of a replica since it started."""

    updates: dict[str, int] = msgspec.field(default_factory=dict)
    """Updates of an embedding server, by outcome."""
    tables: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """Counters of each table on an embedding server."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """Steps that a data loader sent and values that it had to change; steps that an NN worker scored; bytes and rows
    that an embedding server has loaded from a checkpoint."""


class ReplicaUsage(FieldSet, frozen=True):
    """The resources that a replica has used since it started, and its counters."""

    cpu_s: float
    """CPU time in seconds."""
    rss: Count
    """Resident memory in bytes."""
    messages: dict[str, int] = msgspec.field(default_factory=dict)
    """Irregular events of the wire, by kind."""
    links: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """By role, the bytes exchanged with replicas to which it sends requests, repeats included: of messages (`wire`),
    and of arrays passed in shared memory instead (`shared`)."""
    counters: Counters = Counters()
    ran_s: float = 0.0
    """Seconds since the replica started."""
    waited_s: float = 0.0
    """Seconds of them in which it had nothing to do: an NN worker waited for batches, a data loader for permission to
    send more, others for messages."""
    exchanged: dict[str, int] = msgspec.field(default_factory=dict)
    """`messages` exchanged with all other replicas, and their bytes, as in `links`."""
    unanswered: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of requests without an answer at present, by the replica that has to answer them."""


class IntervalMetrics(FieldSet, frozen=True):
    """The metrics of a rank for the interval between two lines of metrics, without its scores."""

    split: Literal["train", "eval"]
    last: int
    """The step after the interval's last."""
    samples: int
    steps: int
    staleness: dict[Count, Positive]
    """Steps of training by the staleness of their rows, as measured from the servers' watermarks."""
    seconds: Annotated[float, msgspec.Meta(ge=0.0)]
    """Duration by the rank's own clock, from the end of the previous interval or the begin of the phase."""
    loss_sums: tuple[float, ...]
    """For each label, the sum over samples of the loss times the weight."""
    ids: Count = 0
    """Number of ids looked up, repeats included; an id of a hash stack counts once per round."""
    unknown: Count = 0
    """Number of these ids that had no row."""
    tables: tuple[TableTotals, ...] = ()
    """Counters of each embedding server, as of its answer to the last of these look-ups."""
    more: bool = False
    """True if more reports of the same evaluation follow."""
    retrieval: dict[str, float] = msgspec.field(default_factory=dict)
    """Retrieval metrics, if the run asks for them: in rank 0's last report of an evaluation."""
    gpu_memory: Count | None = None
    """Most bytes that the rank has allocated on its GPU so far; None on a CPU."""


def together(totals: Iterable[TableTotals]) -> TableTotals:
    """Return the sum of the totals of several servers."""
    return TableTotals(*map(sum, zip(*map(astuple, totals), strict=True)))


def latest(received: Iterable[Sequence[TableTotals]]) -> tuple[TableTotals, ...]:
    """Return the newest totals of each server: the maximum of each counter, since none decreases.

    Totals are merged server by server: of two look-ups at the same time, each may be the last one at another server.
    """
    of_servers = zip_longest(*received, fillvalue=TableTotals())
    return tuple(TableTotals(*map(max, zip(*map(astuple, server), strict=True))) for server in of_servers)

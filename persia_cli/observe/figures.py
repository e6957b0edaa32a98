"""The figures that replicas send the coordinator, checked as they arrive."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from persia_cli.config.schema.mode import MAX_STALENESS
from persia_cli.errors import WireError

Figures = TypeVar("Figures")
Staleness = Annotated[int, msgspec.Meta(ge=0, le=MAX_STALENESS)]
Steps = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class ReplicaFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a replica has used and counted since it started."""

    cpu_s: float
    """CPU time in seconds."""
    rss: int
    """Resident memory in bytes."""
    messages: dict[str, int] = {}
    """What was not as it should be on the wire, by kind."""
    updates: dict[str, int] = {}
    """Updates of an embedding server, by what became of them."""
    tables: dict[str, dict[str, int]] = {}
    """Counters of each table on an embedding server."""
    counts: dict[str, int] = {}
    """What a data loader sent, and what it had to change in the samples; what an NN worker scored."""


class IntervalFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank did between two lines of metrics, beside its scores."""

    split: Literal["train", "eval"]
    last: int
    """The step after the interval's last."""
    samples: int
    steps: int
    staleness: dict[Staleness, Steps]
    """Steps of training by the staleness of their rows, as measured from the servers' watermarks."""
    loss_sum: float
    """Loss of each sample times its weight, summed."""
    loss_scale: float | None = None
    """What the loss was last multiplied by, in float16."""
    steps_skipped: int = 0
    """Steps so far in which gradients overflowed float16 and the dense weights stayed."""
    more: bool = False
    """Whether other reports of the same evaluation follow."""


def read_figures(kind: type[Figures], body: Any) -> Figures:
    """Return the figures that a message brought; raises WireError if they are not of this kind."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise WireError(f"these are no figures: {error}") from error

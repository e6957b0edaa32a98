"""The size limits of each kind of message, so that no peer can make a replica take more memory than that."""

from collections.abc import Iterable
from typing import NamedTuple

from persia_cli.wire.messages import (
    Ack,
    Beat,
    Credit,
    Done,
    Fail,
    Heartbeat,
    Hello,
    Instruction,
    Item,
    Leave,
    LookedUp,
    LookUp,
    Next,
    Pending,
    Pull,
    PullWeights,
    PushGradients,
    PutIds,
    PutSamples,
    Ready,
    Refused,
    Report,
    Rows,
    Scores,
    TakeItem,
    Update,
    WaitCredit,
    Welcome,
)
from persia_cli.wire.parts import Message


class Limit(NamedTuple):
    """The size limits of a kind of message; a larger message is neither sent nor decoded."""

    header: int
    """Bytes of the header: request number, fields, and dtype and shape of each array."""
    arrays: int = 0
    """Number of arrays."""
    nbytes: int = 0
    """Bytes of all arrays together."""


KIB, MIB = 1 << 10, 1 << 20

BATCH_PART = Limit(MIB, arrays=4096, nbytes=1 << 30)
"""Limit of messages with a part of a batch: these grow with the batch and the number of feature groups and servers."""

LIMITS: dict[type[Message], Limit] = {
    Ack: Limit(KIB),
    Pending: Limit(KIB),
    Refused: Limit(64 * KIB),
    PutIds: BATCH_PART,
    PutSamples: BATCH_PART,
    WaitCredit: Limit(KIB),
    Credit: Limit(KIB),
    Pull: Limit(KIB),
    PullWeights: Limit(KIB),
    Rows: BATCH_PART,
    PushGradients: BATCH_PART,
    LookUp: BATCH_PART,
    LookedUp: BATCH_PART,
    Update: BATCH_PART,
    Hello: Limit(4 * KIB),
    Welcome: Limit(16 * MIB),  # a configuration of thousands of features
    Ready: Limit(KIB),
    Next: Limit(KIB),
    Instruction: Limit(64 * KIB),
    Done: Limit(4 * MIB),  # the files that a replica saved, or the counters of its tables
    TakeItem: Limit(KIB),
    Item: Limit(KIB),
    Leave: Limit(KIB),
    Report: Limit(MIB, arrays=len(Report.ARRAYS), nbytes=256 * MIB),  # a portion of an evaluation, sample by sample
    Scores: Limit(MIB, arrays=len(Scores.ARRAYS), nbytes=256 * MIB),
    Heartbeat: Limit(MIB),  # a dozen counters of each table
    Beat: Limit(KIB),
    Fail: Limit(64 * KIB),
}
"""Limit of each kind of message, which bounds the memory that a replica allocates for one."""


def largest_frame(kinds: Iterable[type[Message]]) -> int:
    """Return the bytes of the largest frame that a message of these kinds may have."""
    return max(max(LIMITS[kind].header, LIMITS[kind].nbytes) for kind in kinds)

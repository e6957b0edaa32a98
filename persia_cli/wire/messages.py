"""The messages with the parts of batches, from data loaders to embedding servers and back, and generic replies.

Rows and gradients are encoded in the wire dtype of their feature group, by `persia_cli.store.wire_rows`.
"""

from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from persia_cli.wire.message import BATCH_PART, KIB, BatchId, Count, Limit, Message, Request, TableTotals

PROTOCOL = 49
"""Version of all messages and their encoding; Hello carries it and the coordinator refuses another."""

# Generic replies.


class Ack(Message, frozen=True):
    """Any server -> the client: the request is done."""

    KIND = 0x01
    LIMIT = Limit(64 * KIB)
    others: tuple[Count, ...] = ()
    """Numbers of further requests of this client that are done."""


class Pending(Message, frozen=True):
    """Any server -> the client, when a request is repeated: it was received and will be answered."""

    KIND = 0x02


class Refused(Message, frozen=True):
    """Any server -> the client: the request will not be done, and repeating it does not help."""

    KIND = 0x03
    LIMIT = Limit(64 * KIB)
    reason: str
    exit_code: Count = 1
    """2 if the user can correct it, 1 otherwise."""


# Data loader -> embedding worker and NN worker.


class PutIds(Request[Ack], frozen=True):
    """Data loader -> embedding worker: the ids of a batch, feature-major; Ack when they are stored."""

    KIND = 0x10
    LIMIT = BATCH_PART
    batch: BatchId
    finished: Count
    """Every rank has finished the split's steps before this one, so their rows are not needed any more."""
    ids: Annotated[NDArray[np.uint64], "id"]
    offsets: Annotated[NDArray[np.uint32], "*"] | None
    """The ids of feature f and sample s of n begin at offsets[f * n + s]; None if each has exactly one."""


class PutSamples(Request[Ack], frozen=True):
    """Data loader -> NN worker: all of a batch but its ids; Ack when it is stored."""

    KIND = 0x11
    LIMIT = BATCH_PART
    batch: BatchId
    drawn_share: float
    """Probability that an item is among the negatives drawn for the rank; 0.0 without any."""
    weight_totals: Annotated[NDArray[np.float64], "task"]
    """For each label, the sum of the weights of the global batch's samples that have it; it divides the loss.

    In training with a loss of next elements, the sum of the weights of positions: a sample's own weight for each one
    within its sequence, and that times its label for the newest one, whose next element is the item."""
    dense: Annotated[NDArray[np.float32], "sample dense"]
    labels: Annotated[NDArray[np.float32], "sample task"]
    """NaN where a label is not known."""
    weights: Annotated[NDArray[np.float32], "sample"] | None
    """None where all samples weigh 1."""
    query_ids: Annotated[NDArray[np.uint64], "sample"] | None
    """None if samples have none, and in training unless a loss needs them."""
    item_keys: Annotated[NDArray[np.uint64], "sample"] | None
    """The identity of items (`persia_cli.data.read.item_keys`); None unless a loss needs them."""
    log_q: Annotated[NDArray[np.float32], "*"] | None
    """Where the items of a rank's step are the candidates of a loss of next elements: the logarithm of the probability
    that a step has each one, for the elements of all sequences, in their order, and then for each sample's item."""


class Credit(Message, frozen=True):
    """NN worker -> data loader: batches of steps below `limit` may be sent; those below `finished` are finished."""

    KIND = 0x13
    limit: Count
    finished: Count = 0


class WaitCredit(Request[Credit], frozen=True):
    """Data loader -> NN worker: ask for permission to send a step; Credit once the limit is above it."""

    KIND = 0x12
    split: Annotated[int, msgspec.Meta(ge=0, le=1)]
    step: Count


# NN worker -> embedding worker.


class GroupRows(NamedTuple):
    """The unique rows of a batch in one feature group, and which of them each of its ids has."""

    rows: list[Annotated[NDArray[np.uint8], "* byte"]]
    """Encoded rows of each embedding server, in the order of servers."""
    inverse: Annotated[NDArray[np.int32], "id"]
    """Number of the row of each id among those of all servers, feature-major; an id of a hash stack has several."""
    offsets: Annotated[NDArray[np.uint32], "*"] | None
    """Bounds in `inverse` of feature f and sample s of n, at f * n + s; None if each has exactly one row."""


class Rows(Message, frozen=True):
    """Embedding worker -> NN worker: the unique rows of a batch.

    If dense weights are stored on embedding servers, their rows are the last group.
    """

    KIND = 0x21
    LIMIT = BATCH_PART
    staleness: int
    """Step of the batch minus the last step of its rank whose update is in every row."""
    totals: tuple[TableTotals, ...]
    """Counters of each server, as of its answer."""
    ids: Count
    """Number of ids of the batch, repeats included; an id of a hash stack counts once per round."""
    unknown: Count
    """Number of these ids that had no row before."""
    groups: list[GroupRows]


class Pull(Request[Rows], frozen=True):
    """NN worker -> embedding worker: ask for the rows of a batch; Rows once all servers have answered.

    A repeat that arrives after the batch is finished gets Ack; its rows are not needed any more.
    """

    KIND = 0x20
    batch: BatchId
    dense_rows: Count = 0
    """Number of rows of dense weights to add; 0 if NN workers store dense weights themselves."""


class PullWeights(Request[Rows], frozen=True):
    """NN worker -> embedding worker: ask for the dense weights, for reading only; Rows of that group alone."""

    KIND = 0x23
    batch: BatchId
    """Any batch of the rank that the worker serves."""
    dense_rows: Count


class ReadRows(Request[Rows], frozen=True):
    """NN worker -> embedding worker: ask for the rows of ids outside a batch, for reading only."""

    KIND = 0x24
    LIMIT = BATCH_PART
    batch: BatchId
    """Any batch of the rank that the worker serves."""
    size: Count
    """Number of samples."""
    ids: Annotated[NDArray[np.uint64], "id"]
    """As in `PutIds`, like `offsets`."""
    offsets: Annotated[NDArray[np.uint32], "*"]


class PushGradients(Request[Ack], frozen=True):
    """NN worker -> embedding worker: gradients of a batch, one per unique row; Ack once all servers applied them.

    For the eval split it has no arrays and only makes the worker drop the batch.
    """

    KIND = 0x22
    LIMIT = BATCH_PART
    batch: BatchId
    reductions: Count
    """Number of reductions of the learning rate of rows before the step."""
    groups: list[Annotated[NDArray[np.uint8], "* *"]]
    """Encoded gradients [row, byte] of each feature group."""


# Embedding worker -> embedding server.


class LookedUpRows(NamedTuple):
    """The rows of the keys of one feature group, in their order."""

    rows: Annotated[NDArray[np.uint8], "row byte"]
    unknown: Annotated[NDArray[np.uint32], "*"]
    """Positions of the keys that had no row before, ascending."""


class LookedUp(Message, frozen=True):
    """Embedding server -> embedding worker: one row per key, and the keys that had none before."""

    KIND = 0x31
    LIMIT = BATCH_PART
    watermark: int
    """Last step of the batch's rank up to which all updates are applied; -1 before the first."""
    totals: TableTotals
    """Counters of this server, this look-up included."""
    groups: list[LookedUpRows]


class GroupKeys(NamedTuple):
    """Unique keys of one feature group, and the number of the table of each."""

    keys: Annotated[NDArray[np.uint64], "row"]
    tables: Annotated[NDArray[np.uint16], "row"]


class LookUp(Request[LookedUp], frozen=True):
    """Embedding worker -> embedding server: ask for the rows of unique keys; in sync mode parked until its turn."""

    KIND = 0x30
    LIMIT = BATCH_PART
    batch: BatchId
    create: bool
    """True if unknown keys get a row; otherwise they read as zeros."""
    drawn: tuple[Count, ...]
    """Number of the last keys of each group that read as with `create` false; empty if there are none in any."""
    groups: list[GroupKeys]


class GroupGradients(NamedTuple):
    """Encoded gradients of unique keys of one feature group."""

    keys: Annotated[NDArray[np.uint64], "row"]
    tables: Annotated[NDArray[np.uint16], "row"]
    gradients: Annotated[NDArray[np.uint8], "row byte"]


class Update(Request[Ack], frozen=True):
    """Embedding worker -> embedding server: gradients of unique keys; Ack when they are applied.

    Every server gets one per batch, empty if it owns none of the keys. A repeat is answered but not applied again.
    """

    KIND = 0x32
    LIMIT = BATCH_PART
    batch: BatchId
    reductions: Count
    """As in `PushGradients`."""
    groups: list[GroupGradients]

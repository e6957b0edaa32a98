"""The messages that roles exchange, with their senders, receivers, contents and replies."""

from typing import Annotated, Any

import msgspec

from persia_cli.wire.parts import ArraySpec, BatchId, Count, Message, Request, Sender, TableTotals

PROTOCOL = 11
"""Version of all messages and of how they travel; Hello carries it and the coordinator refuses another."""

REPORTS_AHEAD = 16
"""Largest number of a rank's unanswered reports; they are answered when the reports of all ranks have been written."""

# Generic replies.


class Ack(Message, frozen=True):
    """Any server -> the client: the request is done."""

    KIND = 0x01


class Pending(Message, frozen=True):
    """Any server -> the client, when a request is repeated: it was received and will be answered."""

    KIND = 0x02


class Refused(Message, frozen=True):
    """Any server -> the client: the request will not be done, and repeating it does not help."""

    KIND = 0x03
    reason: str
    exit_code: Count = 1
    """2 if the user can correct it, 1 otherwise."""


# Data loader -> embedding worker and NN worker.


class PutIds(Request[Ack], frozen=True):
    """Data loader -> embedding worker: the ids of a batch, feature-major; Ack when they are stored."""

    KIND = 0x10
    ARRAYS = (ArraySpec("ids", "<u8", "id"), ArraySpec("offsets", "<u4", "*"))
    batch: BatchId


class PutSamples(Request[Ack], frozen=True):
    """Data loader -> NN worker: all of a batch but its ids; Ack when it is stored."""

    KIND = 0x11
    ARRAYS = (
        ArraySpec("dense", "<f4", "sample dense"),
        ArraySpec("labels", "<f4", "sample task"),
        ArraySpec("weights", "<f4", "*"),  # empty where samples have no weights
        ArraySpec("query_ids", "<u8", "*"),  # empty in training, and if samples have none
    )
    batch: BatchId
    weight_total: float
    """Sum of the weights of the global batch, which divides the loss."""


class Credit(Message, frozen=True):
    """NN worker -> data loader: batches of steps below `limit` may be sent."""

    KIND = 0x13
    limit: Count


class WaitCredit(Request[Credit], frozen=True):
    """Data loader -> NN worker: ask for permission to send a step; Credit once the limit is above it."""

    KIND = 0x12
    split: Annotated[int, msgspec.Meta(ge=0, le=1)]
    step: Count


# NN worker -> embedding worker.


class Rows(Message, frozen=True):
    """Embedding worker -> NN worker: the unique rows of a batch, and the position of each id's row among them.

    Rows and gradients, here and below, are encoded in the wire dtype of their group, by `persia_cli.store.wire_rows`.
    If dense weights are stored on embedding servers, their rows are the last group, with their positions as inverse.
    """

    KIND = 0x21
    PER_GROUP = True
    ARRAYS = (
        ArraySpec("inverse", "<i4", "id"),
        ArraySpec("offsets", "<u4", "*"),  # empty if every sample has exactly one id per feature
        ArraySpec("rows", "|u1", "* byte", many=True),  # one per embedding server, in the order of servers
    )
    staleness: int
    """Step of the batch minus the last step of its rank whose update is in every row."""
    totals: tuple[TableTotals, ...] = ()
    """Counters of each server, as of its answer."""
    ids: Count = 0
    """Number of ids of the batch, repeats included; an id of a hash stack counts once per round."""
    unknown: Count = 0
    """Number of these ids that had no row before."""


class Pull(Request[Rows], frozen=True):
    """NN worker -> embedding worker: ask for the rows of a batch; Rows once all servers have answered."""

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


class PushGradients(Request[Ack], frozen=True):
    """NN worker -> embedding worker: gradients of a batch, one per unique row; Ack once all servers applied them.

    For the eval split it has no arrays and only lets the worker drop the batch.
    """

    KIND = 0x22
    PER_GROUP = True
    ARRAYS = (ArraySpec("gradients", "|u1", "row byte"),)
    batch: BatchId


# Embedding worker -> embedding server.


class LookedUp(Message, frozen=True):
    """Embedding server -> embedding worker: one row per key, in key order, and the keys that had none before."""

    KIND = 0x31
    PER_GROUP = True
    ARRAYS = (
        ArraySpec("rows", "|u1", "row byte"),
        ArraySpec("unknown", "<u4", "*"),  # positions of keys, ascending
    )
    watermark: int
    """Last step of the batch's rank up to which all updates are applied; -1 before the first."""
    totals: TableTotals = TableTotals()
    """Counters of this server, this look-up included."""


class LookUp(Request[LookedUp], frozen=True):
    """Embedding worker -> embedding server: ask for the rows of unique keys; in sync mode parked until its turn."""

    KIND = 0x30
    PER_GROUP = True
    ARRAYS = (ArraySpec("keys", "<u8", "row"), ArraySpec("tables", "<u2", "row"))
    batch: BatchId
    create: bool
    """True if unknown keys get a row; otherwise they read as zeros."""


class Update(Request[Ack], frozen=True):
    """Embedding worker -> embedding server: gradients of unique keys; Ack when they are applied.

    Every server gets one per batch, empty if it owns none of the keys. A repeat is answered but not applied again.
    """

    KIND = 0x32
    PER_GROUP = True
    ARRAYS = (
        ArraySpec("keys", "<u8", "row"),
        ArraySpec("tables", "<u2", "row"),
        ArraySpec("gradients", "|u1", "row byte"),
    )
    batch: BatchId


# Any role -> coordinator.


class Welcome(Message, frozen=True):
    """Coordinator -> any role: the incarnation of the replica, the job, and the addresses of all replicas."""

    KIND = 0x41
    incarnation: Count
    run: bytes
    """The resolved run as JSON."""
    job: bytes
    """The plan of the job as JSON."""
    addresses: dict[str, list[str]]
    """Role -> addresses of its replicas, by index."""


class Hello(Request[Welcome], frozen=True):
    """Any role -> coordinator: join the job; Welcome once every replica has joined."""

    KIND = 0x40
    role: str
    index: Count
    pid: Count
    host: str
    version: str
    """Version of the program; the coordinator refuses versions other than its own."""
    protocol: Count
    address: str
    """Address at which the replica serves requests; empty if it serves none."""


class Ready(Request[Ack], frozen=True):
    """Any role -> coordinator: the replica has started and is ready."""

    KIND = 0x42
    sender: Sender
    parameters: Count
    """Number of dense weights that an NN worker trains; 0 for all other roles."""
    rows: Count = 0
    """Number of rows that an embedding server has loaded from a checkpoint."""


class Instruction(Message, frozen=True):
    """Coordinator -> any role: the next instruction."""

    KIND = 0x44
    number: Count
    kind: str
    body: dict[str, Any]


class Next(Request[Instruction], frozen=True):
    """Any role -> coordinator: ask for the instruction after number `after`; parked until there is one."""

    KIND = 0x43
    sender: Sender
    after: Count


class Done(Request[Ack], frozen=True):
    """Any role -> coordinator: instruction `number` is done, with this result."""

    KIND = 0x45
    sender: Sender
    number: Count
    body: dict[str, Any]


class Item(Message, frozen=True):
    """Coordinator -> data loader: a work item, the steps [first, last); with `end`, no steps are left."""

    KIND = 0x47
    first: Count
    last: Count
    end: bool


class TakeItem(Request[Item], frozen=True):
    """Data loader -> coordinator: ask for a work item; parked until there is one."""

    KIND = 0x46
    sender: Sender
    split: Annotated[int, msgspec.Meta(ge=0, le=1)]


class Report(Request[Ack], frozen=True):
    """NN worker -> coordinator: figures of one interval and the histogram of its scores; each number counts once.

    Ack when all ranks have reported the interval, so that no rank is further ahead than REPORTS_AHEAD. If an evaluation
    ranks samples within queries (GAUC), it carries the scores of single samples as well.
    """

    KIND = 0x48
    ARRAYS = (
        ArraySpec("counted", "<u8", "count"),
        ArraySpec("counts", "<f8", "count"),
        ArraySpec("sums", "<f8", "task sum"),
        ArraySpec("query_ids", "<u8", "sample"),  # no samples if there are none
        ArraySpec("logits", "<f4", "sample task"),
        ArraySpec("labels", "<f4", "sample task"),
        ArraySpec("weights", "<f4", "*"),  # empty where samples have no weights
    )
    sender: Sender
    number: Count
    body: dict[str, Any]


class Scores(Request[Ack], frozen=True):
    """NN worker -> coordinator: the network's predictions for a batch of a prediction run; Ack when they are stored."""

    KIND = 0x4C
    ARRAYS = (ArraySpec("logits", "<f4", "sample task"),)
    sender: Sender
    batch: BatchId


class Beat(Message, frozen=True):
    """Coordinator -> any role: the heartbeat arrived; `stop` asks the replica to end."""

    KIND = 0x4A
    stop: bool


class Heartbeat(Request[Beat], frozen=True):
    """Any role -> coordinator, about twice a second: the replica is alive; its present work and how long it takes."""

    KIND = 0x49
    sender: Sender
    doing: str
    """Work that has no visible result before it is done, such as "training step 7"; empty while waiting for others."""
    doing_s: float
    """Seconds since the work last made progress; time in which the replica did not run does not count."""
    cpu_s: float
    """CPU time used so far, in seconds."""
    rss: Count
    """Resident memory in bytes."""
    body: dict[str, Any]


class Leave(Request[Ack], frozen=True):
    """Any role -> coordinator, also before Welcome: this process got a signal to stop, so the job must end."""

    KIND = 0x4D
    role: str
    index: Count
    pid: Count
    signal: str
    """Name of the signal, such as SIGTERM."""


class Fail(Request[Ack], frozen=True):
    """Any role -> coordinator: the replica cannot go on; `error` is a sentence with the reason."""

    KIND = 0x4B
    sender: Sender
    error: str
    exit_code: Count
    """2 if the user can correct it, 1 otherwise."""


BY_KIND: dict[int, type[Message]] = {
    kind.KIND: kind for kind in (*Message.__subclasses__(), *Request.__subclasses__()) if kind is not Request
}

"""Every message that roles exchange: who sends it to whom, what it carries, and what comes back."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec

PROTOCOL = 5
"""Version of everything in this file; Hello carries it and the coordinator refuses another."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a message: its dtype (numpy's `dtype.str`) and the names of its dimensions.

    Equal names mean equal sizes within one message, or within one feature group of it; `*` is any size.
    A `many` array comes one or more times in a row; the sizes it names are the same in all of them.
    """

    name: str
    dtype: str
    dims: str
    many: bool = False

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.dims.split())


class Part(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A group of fields that several messages share."""


class BatchId(Part, frozen=True):
    """What a batch, its look-ups and its updates are known by, whoever carries them."""

    generation: Count
    """Rises by one whenever the job is rolled back."""
    split: Annotated[int, msgspec.Meta(ge=0, le=1)]
    """0 train, 1 eval."""
    step: Count
    rank: Count


class Sender(Part, frozen=True):
    """The replica that asks the coordinator, and which of its lives; older incarnations are refused."""

    role: str
    index: Count
    incarnation: Count


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Fields of a message travel in its header, arrays as raw frames after it or in shared memory."""

    KIND: ClassVar[int]
    """The byte that a message begins with."""
    REPLY: ClassVar["type[Message] | None"] = None
    """What answers it, if it is a request; Pending or Refused may come instead."""
    ARRAYS: ClassVar[tuple[ArraySpec, ...]] = ()
    """The arrays, in this order."""
    PER_GROUP: ClassVar[bool] = False
    """The arrays come once per feature group, in the order of groups; no group at all is allowed."""


# Generic replies.


class Ack(Message, frozen=True):
    """Any server -> the asker: it is done."""

    KIND = 0x01


class Pending(Message, frozen=True):
    """Any server -> the asker, when a request is repeated: it was received and will be answered."""

    KIND = 0x02


class Refused(Message, frozen=True):
    """Any server -> the asker: it will not be done, and asking again does not help."""

    KIND = 0x03
    reason: str


# Data loader -> embedding worker and NN worker.


class PutIds(Message, frozen=True):
    """Data loader -> embedding worker: the ids of a batch, feature-major; Ack when they are kept."""

    KIND = 0x10
    REPLY = Ack
    ARRAYS = (ArraySpec("ids", "<u8", "id"), ArraySpec("offsets", "<u4", "*"))
    batch: BatchId


class PutSamples(Message, frozen=True):
    """Data loader -> NN worker: everything of a batch but its ids; Ack when it is kept."""

    KIND = 0x11
    REPLY = Ack
    ARRAYS = (
        ArraySpec("dense", "<f4", "sample dense"),
        ArraySpec("labels", "<f4", "sample task"),
        ArraySpec("weights", "<f4", "*"),  # empty where samples have no weights
        ArraySpec("groups", "<u8", "*"),  # empty in training, and where samples are in no groups
    )
    batch: BatchId
    weight_total: float
    """Sum of the weights of the global batch: what the loss is divided by."""


class Credit(Message, frozen=True):
    """NN worker -> data loader: batches of steps below `limit` may be sent."""

    KIND = 0x13
    limit: Count


class WaitCredit(Message, frozen=True):
    """Data loader -> NN worker: may I send this step? Answered by Credit once the limit is above it."""

    KIND = 0x12
    REPLY = Credit
    split: Annotated[int, msgspec.Meta(ge=0, le=1)]
    step: Count


# NN worker -> embedding worker.


class Rows(Message, frozen=True):
    """Embedding worker -> NN worker: the unique rows of a batch, and where each of its ids finds its row.

    Rows and gradients, here and below, are encoded in the wire dtype of their group, by `persia_cli.store.wire_rows`.
    Where dense weights live on embedding servers their rows are the last group, with the place of each as inverse.
    """

    KIND = 0x21
    PER_GROUP = True
    ARRAYS = (
        ArraySpec("inverse", "<i4", "id"),
        ArraySpec("offsets", "<u4", "*"),  # empty where every sample has exactly one id per feature
        ArraySpec("rows", "|u1", "* byte", many=True),  # one per embedding server, in the order of servers
    )
    staleness: int
    """Step of the batch minus the last step of its rank that every row was updated with."""


class Pull(Message, frozen=True):
    """NN worker -> embedding worker: the rows of a batch; Rows once servers have answered."""

    KIND = 0x20
    REPLY = Rows
    batch: BatchId
    dense_rows: Count = 0
    """Rows of dense weights to come with them; 0 where NN workers keep their own."""


class PullWeights(Message, frozen=True):
    """NN worker -> embedding worker: dense weights as they are now, only to be read; Rows of that group alone."""

    KIND = 0x23
    REPLY = Rows
    batch: BatchId
    """A batch of the rank that the worker serves, for which it asks."""
    dense_rows: Count


class PushGradients(Message, frozen=True):
    """NN worker -> embedding worker: gradients of a batch, one per unique row; Ack once every server applied them.

    For the eval split it carries no arrays and only lets the worker forget the batch.
    """

    KIND = 0x22
    REPLY = Ack
    PER_GROUP = True
    ARRAYS = (ArraySpec("gradients", "|u1", "row byte"),)
    batch: BatchId


# Embedding worker -> embedding server.


class LookedUp(Message, frozen=True):
    """Embedding server -> embedding worker: one row per key, in the order of keys."""

    KIND = 0x31
    PER_GROUP = True
    ARRAYS = (ArraySpec("rows", "|u1", "row byte"),)
    watermark: int
    """Last step of the asking rank whose updates are all applied; -1 before the first."""


class LookUp(Message, frozen=True):
    """Embedding worker -> embedding server: rows of unique keys; in sync mode parked until their turn."""

    KIND = 0x30
    REPLY = LookedUp
    PER_GROUP = True
    ARRAYS = (ArraySpec("keys", "<u8", "row"), ArraySpec("tables", "<u2", "row"))
    batch: BatchId
    create: bool
    """Whether unknown keys get a row; otherwise they read as zeros."""


class Update(Message, frozen=True):
    """Embedding worker -> embedding server: gradients of unique keys; Ack when they are applied.

    Every server gets one per batch, empty where it owns no key of it; a repeat is answered and not applied.
    """

    KIND = 0x32
    REPLY = Ack
    PER_GROUP = True
    ARRAYS = (
        ArraySpec("keys", "<u8", "row"),
        ArraySpec("tables", "<u2", "row"),
        ArraySpec("gradients", "|u1", "row byte"),
    )
    batch: BatchId


# Any role -> coordinator.


class Welcome(Message, frozen=True):
    """Coordinator -> any role: which life of the replica this is, the job, and where everyone listens."""

    KIND = 0x41
    incarnation: Count
    run: bytes
    """The resolved run as JSON."""
    job: bytes
    """The plan of the job as JSON."""
    addresses: dict[str, list[str]]
    """Role -> address of each of its replicas, by index."""


class Hello(Message, frozen=True):
    """Any role -> coordinator: I exist and listen at `address`; Welcome once every replica has said so."""

    KIND = 0x40
    REPLY = Welcome
    role: str
    index: Count
    pid: Count
    host: str
    version: str
    """Version of the program; the coordinator refuses another than its own."""
    protocol: Count
    address: str
    """Where the replica serves requests; empty if it serves none."""


class Ready(Message, frozen=True):
    """Any role -> coordinator: I have started and can work."""

    KIND = 0x42
    REPLY = Ack
    sender: Sender
    parameters: Count
    """Dense weights that an NN worker trains; 0 for all other roles."""


class Instruction(Message, frozen=True):
    """Coordinator -> any role: what to do next."""

    KIND = 0x44
    number: Count
    kind: str
    body: dict[str, Any]


class Next(Message, frozen=True):
    """Any role -> coordinator: the instruction that follows number `after`; parked until there is one."""

    KIND = 0x43
    REPLY = Instruction
    sender: Sender
    after: Count


class Done(Message, frozen=True):
    """Any role -> coordinator: instruction `number` is carried out, with this result."""

    KIND = 0x45
    REPLY = Ack
    sender: Sender
    number: Count
    body: dict[str, Any]


class Item(Message, frozen=True):
    """Coordinator -> data loader: the steps from `first` up to, not including, `last`; at the `end` none are left."""

    KIND = 0x47
    first: Count
    last: Count
    end: bool


class TakeItem(Message, frozen=True):
    """Data loader -> coordinator: steps to load; parked until there are some."""

    KIND = 0x46
    REPLY = Item
    sender: Sender
    split: Annotated[int, msgspec.Meta(ge=0, le=1)]


class Report(Message, frozen=True):
    """NN worker -> coordinator: figures of one interval and the histogram of its scores; each number counts once.

    Where an evaluation is to be judged within groups of samples, its scores come one by one as well.
    """

    KIND = 0x48
    REPLY = Ack
    ARRAYS = (
        ArraySpec("bins", "<u4", "bin"),
        ArraySpec("counts", "<f8", "bin"),
        ArraySpec("groups", "<u8", "sample"),  # no samples where there are no groups
        ArraySpec("logits", "<f4", "sample task"),
        ArraySpec("labels", "<f4", "sample task"),
        ArraySpec("weights", "<f4", "*"),  # empty where samples have no weights
    )
    sender: Sender
    number: Count
    body: dict[str, Any]


class Scores(Message, frozen=True):
    """NN worker -> coordinator: what the network says of a batch that is to be scored; Ack when it is kept."""

    KIND = 0x4C
    REPLY = Ack
    ARRAYS = (ArraySpec("logits", "<f4", "sample task"),)
    sender: Sender
    batch: BatchId


class Beat(Message, frozen=True):
    """Coordinator -> any role: heard; `stop` asks it to end."""

    KIND = 0x4A
    stop: bool


class Heartbeat(Message, frozen=True):
    """Any role -> coordinator, about once a second: I am alive, and this long ago I last got something done."""

    KIND = 0x49
    REPLY = Beat
    sender: Sender
    progress_age_s: float
    cpu_s: float
    """CPU time used so far, in seconds."""
    rss: Count
    """Resident memory in bytes."""
    body: dict[str, Any]


class Fail(Message, frozen=True):
    """Any role -> coordinator: I cannot go on; the sentence says why."""

    KIND = 0x4B
    REPLY = Ack
    sender: Sender
    error: str
    exit_code: Count
    """2 if the user can put it right, 1 otherwise."""


BY_KIND: dict[int, type[Message]] = {message.KIND: message for message in Message.__subclasses__()}

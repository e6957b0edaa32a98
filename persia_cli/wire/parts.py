"""The parts of messages: sets of fields, size limits, and the base classes of messages."""

from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


KIB, MIB = 1 << 10, 1 << 20


class Limit(NamedTuple):
    """The size limits of a kind of message, so that no peer can make a replica take more memory than that.

    A larger message is neither sent nor decoded.
    """

    header: int
    """Bytes of the header: request number, fields, and the shape of each array."""
    arrays: int = 0
    """Number of arrays."""
    nbytes: int = 0
    """Bytes of all arrays together."""


BATCH_PART = Limit(MIB, arrays=4096, nbytes=1 << 30)
"""Limit of messages with a part of a batch: these grow with the batch and the number of feature groups and servers."""


class FieldSet(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A set of fields that several messages share."""


class BatchId(FieldSet, frozen=True):
    """The identity of a batch, its look-ups and its updates in all messages."""

    generation: Count
    """Rises by one whenever the job is rolled back."""
    split: Annotated[int, msgspec.Meta(ge=0, le=1)]
    """0 train, 1 eval."""
    step: Count
    rank: Count


class Sender(FieldSet, frozen=True):
    """The replica that sends a request to the coordinator, and its incarnation; older incarnations are refused."""

    role: str
    index: Count
    incarnation: Count


class ProcessId(FieldSet, frozen=True):
    """One process among all of all machines.

    Its number alone is not enough: in each container processes are numbered from 1, and two machines may use one
    number at the same time.
    """

    pid: Count
    began: Count = 0
    """When it began, in ticks since its machine did."""
    place: str = ""
    """As `persia_cli.wire.place.own_place`; empty where that cannot be known."""


class TableTotals(FieldSet, frozen=True):
    """Counters of all tables that features read, since the start, on one embedding server or summed over several."""

    rows: Count = 0
    """Rows at present."""
    evicted: Count = 0
    hits: Count = 0
    """Distinct keys of training look-ups that had a row; `misses` are those that had none."""
    misses: Count = 0


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A message: the last of its fields may be arrays, which `persia_cli.wire.arrays` describes.

    The other fields travel in the header, the arrays as raw frames after it or in shared memory.
    """

    KIND: ClassVar[int]
    """First byte of the message."""
    LIMIT: ClassVar[Limit] = Limit(KIB)
    REPLY: ClassVar["type[Message] | None"] = None
    """Type of the reply if it is a request."""


Reply = TypeVar("Reply", bound=Message)


class Request(Message, Generic[Reply], frozen=True):
    """A message that is answered by one of type Reply; Pending or Refused may come instead."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.REPLY = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]

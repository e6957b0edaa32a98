"""The parts of messages: arrays, sets of fields, and the base class of messages."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array of a message: its dtype (numpy's `dtype.str`) and the names of its dimensions.

    Equal names mean equal sizes within a message, or within one feature group of it; `*` is any size. A `many` array
    occurs one or more times in a row, with the same named sizes each time.
    """

    name: str
    dtype: str
    dims: str
    many: bool = False

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.dims.split())


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


class TableTotals(FieldSet, frozen=True):
    """Counters of all tables that features read, since the start, on one embedding server or summed over several."""

    rows: Count = 0
    """Rows at present."""
    evicted: Count = 0
    hits: Count = 0
    """Distinct keys of training look-ups that had a row; `misses` are those that had none."""
    misses: Count = 0


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A message: its fields travel in the header, its arrays as raw frames after it or in shared memory."""

    KIND: ClassVar[int]
    """First byte of the message."""
    REPLY: ClassVar["type[Message] | None"] = None
    """Type of the reply if it is a request."""
    ARRAYS: ClassVar[tuple[ArraySpec, ...]] = ()
    """The arrays of the message, in this order."""
    PER_GROUP: ClassVar[bool] = False
    """True if the arrays occur once per feature group, in the order of groups; a message may have no group at all."""


Reply = TypeVar("Reply", bound=Message)


class Request(Message, Generic[Reply], frozen=True):
    """A message that is answered by one of type Reply; Pending or Refused may come instead."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.REPLY = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]

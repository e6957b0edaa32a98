"""The messages by which ranks meet: `torch.distributed` finds its peers through values that all of them can read."""

from typing import Literal

from persia_cli.wire.parts import KIB, Count, Limit, Message, Request, Sender

Call = Literal["set", "get", "add", "compare_set", "check", "delete"]
"""What is asked of the store."""


class StoreValue(Message, frozen=True):
    """Coordinator -> NN worker: the value of a key of the ranks' store, or a number."""

    KIND = 0x53
    LIMIT = Limit(64 * KIB)
    value: bytes = b""
    number: int = 0
    """What `add` came to; how many of the keys are there (`check`), or were (`delete`)."""


class StoreCall(Request[StoreValue], frozen=True):
    """NN worker -> coordinator: a call of the store by which the ranks of a group meet; `get` waits for its key.

    Each group has a store of its own, and values of earlier groups are gone.
    """

    KIND = 0x52
    LIMIT = Limit(64 * KIB)
    sender: Sender
    group: Count
    call: Call
    keys: tuple[str, ...]
    """One, but for `check`."""
    value: bytes = b""
    """What to set."""
    expected: bytes = b""
    """What `compare_set` has to find; empty where the key may also not be there."""
    amount: int = 0
    """What to add."""

    @property
    def changes(self) -> bool:
        """True if it may change the store."""
        return self.call not in ("get", "check")

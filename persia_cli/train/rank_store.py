"""The store by which ranks meet: torch's interface to values that the coordinator keeps."""

from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from persia_cli.wire.job_messages import Call, StoreValue

Ask = Callable[[Call, list[str], bytes, bytes, int, float], StoreValue]
"""Makes a call with keys, value, expected value and amount, and waits so many seconds for the answer."""


class RankStore(dist.Store):  # type: ignore[name-defined, misc]
    """A store of `torch.distributed` that listens nowhere and needs no file: it asks whoever keeps the values.

    torch calls it from several threads. A value that is not there after `timeout_s` raises RuntimeError.
    """

    def __init__(self, ask: Ask, timeout_s: float) -> None:
        super().__init__()
        self._ask, self._timeout_s = ask, timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        """Set the value of a key."""
        self._call("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of a key; waits for it."""
        return self._call("get", key).value

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0; return the sum."""
        return self._call("add", key, amount=amount).number

    def compare_set(self, key: str, expected: bytes | str, value: bytes | str) -> bytes:
        """Set the value of a key if it is the expected one, or if none is expected; return what it is then."""
        return self._call("compare_set", key, _bytes(value), _bytes(expected)).value

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""
        return self._ask("check", keys, b"", b"", 0, self._timeout_s).number == len(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there."""
        for key in keys:
            self._ask("get", [key], b"", b"", 0, timeout.total_seconds() if timeout else self._timeout_s)

    def delete_key(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        return self._call("delete", key).number == 1

    def set_timeout(self, timeout: timedelta) -> None:
        """Wait so long for values from now on."""
        self._timeout_s = timeout.total_seconds()

    def _call(self, call: Call, key: str, value: bytes = b"", expected: bytes = b"", amount: int = 0) -> StoreValue:
        return self._ask(call, [key], value, expected, amount, self._timeout_s)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)

"""The store through which ranks meet: torch's interface to values that the coordinator stores."""

import queue
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from persia_cli.roles.session import CoordinatorSession
from persia_cli.wire.job_messages import Call, StoreCall, StoreValue

WAIT_S = 0.2
"""Seconds between two checks whether the job is over."""


class RankStore(dist.Store):  # type: ignore[name-defined, misc]
    """A store of `torch.distributed` without a listener or a file: it calls the coordinator.

    torch calls it from several threads; `call` makes the thread that owns the session run a function. A value that is
    missing after `timeout_s` raises RuntimeError, as in torch's stores; `check_job` raises an error if the job has
    ended.
    """

    def __init__(
        self,
        session: CoordinatorSession,
        call: Callable[[Callable[[], None]], None],
        check_job: Callable[[], None],
        timeout_s: float,
    ) -> None:
        super().__init__()
        self._session, self._on_loop, self._check_job, self._timeout_s = session, call, check_job, timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        """Set the value of a key."""
        self._ask("set", [key], _bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of a key; wait for it."""
        return self._ask("get", [key]).value

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0; return the sum."""
        return self._ask("add", [key], amount=amount).number

    def compare_set(self, key: str, expected: bytes | str, value: bytes | str) -> bytes:
        """Set the value of a key if it is the expected one, or if none is expected; return its value after that."""
        return self._ask("compare_set", [key], _bytes(value), _bytes(expected)).value

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys exist."""
        return self._ask("check", keys).number == len(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist."""
        for key in keys:
            self._ask("get", [key], timeout_s=timeout.total_seconds() if timeout else None)

    def delete_key(self, key: str) -> bool:
        """Remove a key; return whether it existed."""
        return self._ask("delete", [key]).number == 1

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls."""
        self._timeout_s = timeout.total_seconds()

    def _ask(
        self,
        call: Call,
        keys: list[str],
        value: bytes = b"",
        expected: bytes = b"",
        amount: int = 0,
        timeout_s: float | None = None,
    ) -> StoreValue:
        """Make a call and wait for the answer."""
        session, answers = self._session, queue.SimpleQueue[StoreValue]()
        message = StoreCall(session.sender, call, tuple(keys), value, expected, amount)
        self._on_loop(lambda: session.ask_store(message, answers.put))
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            self._check_job()
            try:
                return answers.get(timeout=WAIT_S)
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no answer to {call} {keys[0]} within {timeout_s:g} s") from None


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)

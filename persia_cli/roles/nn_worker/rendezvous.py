"""A rank's way to the store by which ranks meet, which the coordinator keeps."""

import queue
import time
from collections.abc import Callable

from persia_cli.roles.session import CoordinatorSession
from persia_cli.wire.job_messages import Call, StoreCall, StoreValue

WAIT_S = 0.2
"""Seconds between two looks at whether the job is over."""


class RankRendezvous:
    """Calls of the store, from any thread; `call` has the thread that owns the session do something.

    `check` raises an error if the job has ended.
    """

    def __init__(
        self, session: CoordinatorSession, call: Callable[[Callable[[], None]], None], check: Callable[[], None]
    ) -> None:
        self._session, self._call, self._check = session, call, check

    def ask(
        self, call: Call, keys: list[str], value: bytes, expected: bytes, amount: int, timeout_s: float
    ) -> StoreValue:
        """Make a call and wait for the answer; raises RuntimeError, as torch's stores do, if there is none in time."""
        session, answers = self._session, queue.SimpleQueue[StoreValue]()
        message = StoreCall(session.sender, call, tuple(keys), value, expected, amount)
        self._call(lambda: session.ask_store(message, answers.put))
        deadline = time.monotonic() + timeout_s
        while True:
            self._check()
            try:
                return answers.get(timeout=WAIT_S)
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no answer to {call} {keys[0]} within {timeout_s:g} s") from None

"""The meaning of exit codes: which dead process may be replaced, how often and how soon."""

import signal
from collections import defaultdict, deque

from persia_cli.errors import PreemptedError, UserError

MAX_WAIT_S = 30.0
"""Longest wait before a restart."""


NEVER_AGAIN = (UserError.exit_code, PreemptedError.exit_code)
"""Exit codes after which a new process would end in the same way: a user's mistake, and a job that was saved."""

RESTARTED = ("embedding-worker", "data-loader")
"""Roles whose replicas get a new process after any death."""

WITH_MEMORY = "embedding-server"
"""The role whose memory outlives its process."""

TRUSTED = (-signal.SIGKILL, -signal.SIGTERM)
"""Ends by a signal from outside, after which the memory of a process is intact.

A role takes SIGTERM as the order to save and end the job, so this signal kills it only before it handles signals.
"""

SILENT = "was killed, since it was silent"
"""A phrase for the death of a process that the coordinator has killed."""


def may_be_replaced(role: str, exit_code: int, memory_is_retained: bool) -> bool:
    """Return whether a new process may follow one that ended in this way; RestartPolicy limits how often."""
    if role == WITH_MEMORY:
        return memory_is_retained and exit_code in TRUSTED
    return role in RESTARTED and exit_code not in NEVER_AGAIN


def killed_by(number: int) -> str:
    """Return a phrase for the death of a process by a signal; the system sends SIGKILL where memory runs out."""
    return f"was killed by {signal.Signals(number).name}{' (out of memory?)' if number == signal.SIGKILL else ''}"


def ended_how(exit_code: int) -> str:
    """Return a phrase for the end of a process, from the result of waitpid: an exit code or minus a signal's number."""
    return killed_by(-exit_code) if exit_code < 0 else f"ended with exit code {exit_code}"


class RestartPolicy:
    """At most `max_restarts` restarts of each name within `window_s` seconds; `now` is given in seconds."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self.max_restarts, self.window_s = max_restarts, window_s
        self._restarts: defaultdict[str, deque[float]] = defaultdict(deque)

    def next(self, name: str, now: float) -> float | None:
        """Count one more restart of a replica; return the seconds to wait before it, None if the limit is reached.

        The first restart is immediate; then 1, 2, 4, … seconds, at most MAX_WAIT_S.
        """
        recent = self._restarts[name]
        while recent and now - recent[0] > self.window_s:
            recent.popleft()
        if len(recent) >= self.max_restarts:
            return None
        recent.append(now)
        return 0.0 if len(recent) == 1 else float(min(2 ** (len(recent) - 2), MAX_WAIT_S))

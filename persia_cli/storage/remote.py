"""Calls to stores on other machines, with a deadline and with sentences for the usual errors."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from persia_cli.errors import DataError, UserError

DEADLINE_S = 30.0
"""Deadline for the first answer of a store."""
SLOWEST = 1e6
"""Minimum bytes per second that a store must take; slower calls are aborted."""
LISTING_DEADLINE_S = 600.0
"""Deadline for the list of all files below a folder."""

Result = TypeVar("Result")

_THREAD = "persia-ask"
_patience = threading.local()

_CAUSES = (
    (("ACCESS_DENIED", "403", "credential", "PERMISSION", "Unauthenticated", "401", "INVALID_ACCESS_KEY"),
     "you may not {verb} it: check credentials (AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS or the like) and rights"),
    (("NO_SUCH_BUCKET", "404", "NotFound", "not found", "does not exist"), "there is no such bucket: check its name"),
    (("NETWORK_CONNECTION", "resolve", "refused", "Could not connect", "connect", "UNAVAILABLE", "timed out"),
     "it cannot be reached: check the network and the endpoint"),
)  # fmt: skip
"""Signs in a store's error, and the sentence for each; a number may also be part of a port or an address."""


def sending_s(nbytes: int) -> float:
    """Return the deadline for the answer to so many bytes that are sent to a store."""
    return DEADLINE_S + nbytes / SLOWEST


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit all calls of `ask` by this thread in the block to so many seconds together."""
    before: tuple[float, float] | None = getattr(_patience, "limits", None)
    limits = (seconds, time.monotonic() + seconds)
    _patience.limits = limits if before is None or limits[1] < before[1] else before
    try:
        yield
    finally:
        _patience.limits = before


def ask(
    place: str,
    call: Callable[[], Result],
    deadline_s: float | None = None,
    raising: type[UserError] = DataError,
    verb: str = "read",
) -> Result:
    """Return the result of `call`, by default within DEADLINE_S; `place` is the URI of its store.

    Raises `raising` if the call takes longer (it then goes on in its thread), or if it raises an OSError; `verb` names
    what the call does. Does not call if no time is left `within` a block.
    """
    place = without_secret(place)
    limit = limit_s = DEADLINE_S if deadline_s is None else deadline_s
    if limits := getattr(_patience, "limits", None):
        limit, limit_s = min(limit, limits[0]), min(limit, max(0.0, limits[1] - time.monotonic()))
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    if limit_s:
        thread = threading.Thread(target=run, name=_THREAD, daemon=True)
        thread.start()
        thread.join(limit_s)
    if results:
        return results[0]
    if not errors:
        raise raising(
            f"{place} has not answered within {limit:g} s; check the network, the name of the bucket, and credentials "
            "(GOOGLE_APPLICATION_CREDENTIALS, AWS_PROFILE or the like)"
        )
    if isinstance(errors[0], OSError):
        raise raising(f"{place}: {explain(errors[0], verb)}") from errors[0]
    raise errors[0]


def is_waiting() -> bool:
    """Return True if a call that exceeded its deadline is still running."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def without_secret(text: str, queries: bool = True) -> str:
    """Return a text without the passwords, their users and, with `queries`, the queries of the URIs in it.

    A secret may contain any character but white space, also those that a URI should encode. A URI that was taken for a
    path has one slash.
    """
    text = re.sub(r"(:/+)[^/?@\s]*(:|%3[Aa])\S*@", r"\1***@", text)
    if not queries:
        return text
    return re.sub(r"(:/+[^\s?]*)\?[^\s,;'\")\]]*", r"\1", text)


def explain(error: OSError, verb: str = "read") -> str:
    """Return the meaning of a store's error, and its text; `verb` names the call."""
    text = without_secret(" ".join(str(error).split())).removesuffix(".")
    found = (cause.format(verb=verb) for signs, cause in _CAUSES if any(_says(text, sign) for sign in signs))
    return f"{next(found, f'it cannot be {PARTICIPLES[verb]}')} ({text})"


PARTICIPLES = {"read": "read", "write": "written"}


def _says(text: str, sign: str) -> bool:
    return re.search(rf"\b{sign}\b" if sign.isdigit() else sign, text) is not None

"""The piece of work under way in a replica and its age, for work that shows no progress before it is done."""

from collections.abc import Callable
from typing import Any, NamedTuple

COMPILING = "compiling the network"


class Piece(NamedTuple):
    """One piece of work; `number` distinguishes it from an equal one after it."""

    number: int = 0
    doing: str = ""
    """Such as "training step 7"; empty while the replica waits for others."""


class Work:
    """The piece of work under way. One thread sets it; another asks how long it has lasted."""

    def __init__(self) -> None:
        self._piece = Piece()
        self._seen: tuple[Piece, Any] = (self._piece, None)
        self._since_s = 0.0

    def begin(self, doing: str) -> None:
        """A piece of work begins; the one before it, if any, is over."""
        # One assignment, so that the other thread never sees half of it.
        self._piece = Piece(self._piece.number + 1, doing)

    def end(self) -> None:
        """The piece of work is done; from now on the replica waits for others."""
        self.begin("")

    def nested(self, doing: str) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what is to be called when such a piece begins within another, and when the other goes on."""
        outer: list[str] = []

        def begin() -> None:
            outer.append(self._piece.doing)
            self.begin(doing)

        return begin, lambda: self.begin(outer.pop())

    def age(self, figures: Any, now: float) -> tuple[str, float]:
        """Return what is being done and for how many seconds nothing has come of it; called about twice a second.

        Something has come of it when a piece of work is done or the replica's figures change. `now` is in seconds.
        """
        seen = (self._piece, figures)
        if seen != self._seen:
            self._seen, self._since_s = seen, now
        doing = seen[0].doing
        return doing, now - self._since_s if doing else 0.0

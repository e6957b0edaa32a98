"""A fact about this machine, and the advice that follows from it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """The text of one fact, its values for programs (bytes, bytes per second), and what to do if all is not well."""

    text: str
    values: dict[str, Any] = field(default_factory=dict)
    advice: str = ""
    prevents: bool = False
    """True if this machine can train nothing until that changes."""

    @property
    def level(self) -> str:
        """Return `ok`, `advice` or `error`."""
        return "error" if self.prevents else "advice" if self.advice else "ok"


def gib(nbytes: float) -> str:
    """Return a number of bytes in GiB."""
    return f"{nbytes / 2**30:.1f} GiB"

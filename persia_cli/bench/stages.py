"""The time of each role, from a trace: milliseconds per step of all its work and its waiting."""

from collections.abc import Sequence
from dataclasses import dataclass

from persia_cli.observe.trace import ReplicaTrace


@dataclass(frozen=True, slots=True)
class Stage:
    """A piece of work, or of waiting, that one replica repeats in each step."""

    replica: str
    stage: str
    ms: float
    """Milliseconds per step."""
    aside: bool
    """True if it is waited for while other work is done."""


def stages_of(parts: Sequence[ReplicaTrace], steps: int) -> list[Stage]:
    """Add up the spans of a trace of `steps` steps per replica, in their order within a step."""
    found = []
    for part in parts:
        totals: dict[tuple[str, bool], int] = {}
        firsts: dict[tuple[str, bool], int] = {}
        for span in part.spans:
            if span.end_ns is None:
                continue
            key = (span.name, not span.lane)
            totals[key] = totals.get(key, 0) + span.end_ns - span.begin_ns
            firsts[key] = min(firsts.get(key, span.begin_ns), span.begin_ns)
        order = sorted(totals, key=lambda key: (key[1], firsts[key]))
        found += [Stage(part.replica, name, totals[name, aside] / steps / 1e6, aside) for name, aside in order]
    return found

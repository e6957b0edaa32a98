"""The recoveries in the record of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]


def recoveries_in(events: Sequence[Line]) -> list[Line]:
    """Return the events of the recoveries that are over, in order."""
    return [event for event in events if event["event"] == "recovered"]


DONE_AGAIN = {
    "steps": ("step", "assigned again"),
    "batches": ("batch", "sent again"),
    "requests": ("request", "continued"),
}
"""The work that a recovery repeats: its unit, and how it is repeated."""


def amount(unit: str, number: int) -> str:
    """Return `1 batch` or `12 batches`."""
    return f"{number:,} {unit if number != 1 else DONE_AGAIN[unit][0]}"


def outcome_of(event: Line) -> str:
    """Return a sentence about a recovery: its duration, and the repeated work."""
    took = f"after {event['seconds']:.1f} s"
    [(unit, number)] = event["repeated"].items()
    if not number and "checkpoint" not in event:
        return f"{took}; nothing was in progress"
    done = f"after step {event['checkpoint']:,} trained again" if "checkpoint" in event else DONE_AGAIN[unit][1]
    return f"{took}; {amount(unit, number)} {done}"

"""What the record of a run says about the deaths that it outlived."""

from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]


def recoveries_in(events: Sequence[Line]) -> list[Line]:
    """Return the events of the recoveries that are over, in order."""
    return [event for event in events if event["event"] == "recovered"]


def outcome_of(event: Line) -> str:
    """Return a sentence about a recovery: how long it took, what was done again, and what was lost."""
    if not event["repeated"]:
        return f"after {event['seconds']:.1f} s; nothing done again, {event['lost']} lost"
    [(unit, repeated)] = event["repeated"].items()
    done = f"after step {event['checkpoint']:,} trained again" if "checkpoint" in event else "sent again"
    done = "under way finished" if unit == "requests" else done
    if "loaded" in event:
        tables = ", ".join(event["lost_of_tables"]) or "none"
        lost = f"{event['lost']:,} updates lost" + (f" (tables: {tables})" if event["lost"] else "")
        return f"after {event['seconds']:.1f} s; its rows of step {event['loaded']:,} are loaded again, {lost}"
    return f"after {event['seconds']:.1f} s; {repeated:,} {unit} {done}, {event['lost']} lost"

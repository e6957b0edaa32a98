"""The measurements of a drill, from the record of the run."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from persia_cli.drill.result import StrikeResult, UpdateCounts

SERVER = "embedding-server"


def count_updates(events: Sequence[Mapping[str, Any]], expected: int) -> UpdateCounts | None:
    """Compare the updates that each server has counted with those that it should have applied since its job began.

    Returns None while the job goes on. A server's count goes from process to process with its memory.
    """
    roles = [event for event in events if event["event"] == "roles"]
    if not roles:
        return None
    servers = [role["updates"] for role in roles[-1]["roles"] if role["role"] == SERVER]
    applied = [updates["applied"] for updates in servers if "applied" in updates]
    return UpdateCounts(
        applied=sum(applied),
        twice=sum(max(0, each - expected) for each in applied),
        lost=sum(max(0, expected - each) for each in applied),
        repeated=sum(int(updates.get("repeated", 0)) for updates in servers),
    )


def measure_times(strike: StrikeResult, lines: Iterable[Mapping[str, Any]]) -> None:
    """Find out from the metrics when the job trained on after a disturbance, and how long it reached no new step."""
    found = [(float(line["time"]), int(line["step"])) for line in lines if line["split"] == "train"]
    on = [at for at, _ in found if at > strike.over]
    further = [at for at, step in found if at > strike.at and step > strike.step]
    if strike.recovered_s is None and not strike.problem and on:
        strike.recovered_s = round(on[0] - strike.at, 3)
    strike.caught_up_s = round(further[0] - strike.at, 3) if further else None
    strike.standstill_s = round(_longest_gap(found, strike), 3)


def _longest_gap(found: Sequence[tuple[float, int]], strike: StrikeResult) -> float:
    """Return the longest time without a new step that began before the job had recovered from a disturbance."""
    highest = accumulate((step for _, step in found), max, initial=-1)
    new = [at for (at, step), before in zip(found, highest, strict=False) if step > before]
    until = max(strike.over, strike.at + (strike.recovered_s or 0.0))
    gaps = [end - max(begin, strike.at) for begin, end in pairwise(new) if end > strike.at and begin <= until]
    return max(gaps, default=0.0)


def take_from_events(
    strike: StrikeResult, recovered: Sequence[Mapping[str, Any]], died: Sequence[Mapping[str, Any]]
) -> None:
    """Note what the job has recorded of its recoveries from a disturbance."""
    noticed = [event["time"] for event in died]
    # A job that went back says how long that took since it knew.
    noticed += [event["time"] - event["seconds"] for event in recovered]
    strike.noticed_s = round(max(min(noticed) - strike.at, 0.0), 3) if noticed else None
    strike.recovered_s = round(max(event["time"] for event in recovered) - strike.at, 3) if recovered else None
    strike.text = "; ".join(dict.fromkeys(str(event["cause"]) for event in recovered))
    for event in recovered:
        for what, times in (event.get("repeated") or {}).items():
            strike.repeated[what] = strike.repeated.get(what, 0) + (times or 0)
    strike.went_back = any("checkpoint" in event for event in recovered)


def messages_refused(events: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """Return how many messages the last process of a replica has refused; None while the job goes on."""
    roles = [event for event in events if event["event"] == "roles"]
    found = [role for role in roles[-1]["roles"] if f"{role['role']}-{role['index']}" == name] if roles else []
    return int(found[-1].get("messages", {}).get("refused", 0)) if found else None

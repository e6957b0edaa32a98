"""The figures of a drill, from servers' accounts and from the record of the run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.drill.account import ServerAccount, account_of, read_entries
from persia_cli.drill.result import StrikeResult, UpdateCounts
from persia_cli.roles.update_account import APPLIED, FOLDER, SUFFIX

Entries = Mapping[str, tuple[NDArray[np.void], int]]
"""The entries of each server, and how many had no room."""


def read_all(run_dir: Path, servers: Sequence[str]) -> Entries:
    """Return what all servers have written down so far."""
    return {name: read_entries(run_dir / FOLDER / f"{name}{SUFFIX}") for name in servers}


def count_updates(entries: Entries, ranks: int, first: int, last: int) -> UpdateCounts:
    """Count the updates of the steps [first, last), all of which were trained, for each server and rank."""
    accounts = [account_of(name, *found) for name, found in entries.items()]
    again = {update for account in accounts for update in account.taken_back if update in account.applied}
    return UpdateCounts(
        applied=sum(len(account.applied) for account in accounts),
        twice=sum(len(account.twice()) for account in accounts),
        lost=sum(len(account.missing(rank, first, last)) for account in accounts for rank in range(ranks)),
        taken_back=sum(len(account.taken_back) for account in accounts),
        steps_again=len(again),
        left_out=sum(account.left_out for account in accounts),
    )


def surely_applied(accounts: Sequence[ServerAccount], ranks: int, staleness: int) -> int:
    """Return the step before which every server must have every update, while the job goes on.

    A rank looks a step up only when all its steps up to `staleness` before that are applied on every server.
    """
    newest = [
        max((step for account in accounts for of, step in account.applied if of == rank), default=-1)
        for rank in range(ranks)
    ]
    return max(0, min(newest, default=-1) - staleness + 1)


def measure_times(strike: StrikeResult, entries: Entries) -> None:
    """Find out from the accounts when the job trained on after a disturbance, and how long it reached no new step."""
    on, further, gaps = [], [], []
    for found, _ in entries.values():
        applied = found[found["kind"] == APPLIED]
        seconds = applied["ns"] / 1e9
        after = seconds[seconds > strike.over]
        beyond = seconds[(seconds > strike.at) & (applied["step"] > strike.step)]
        on.append(float(after.min()) if after.size else None)
        further.append(float(beyond.min()) if beyond.size else None)
        gaps.append(_longest_gap(applied["step"], seconds, strike))
    if strike.recovered_s is None and not strike.problem:
        strike.recovered_s = _latest(on, strike.at)
    strike.caught_up_s = _latest(further, strike.at)
    strike.standstill_s = round(max(gaps, default=0.0), 3)


def _longest_gap(steps: NDArray[np.int64], seconds: NDArray[np.float64], strike: StrikeResult) -> float:
    """Return the longest time without a new step that began before the job had recovered from a disturbance."""
    if not steps.size:
        return 0.0
    highest = np.maximum.accumulate(steps)
    new = seconds[np.concatenate([[True], highest[1:] > highest[:-1]])]
    begins, ends = np.maximum(new[:-1], strike.at), new[1:]
    during = (ends > strike.at) & (new[:-1] <= max(strike.over, strike.at + (strike.recovered_s or 0.0)))
    return float((ends - begins)[during].max(initial=0.0))


def _latest(moments: Sequence[float | None], begin: float) -> float | None:
    """Return the seconds until the last of these moments; None if one of them has not come."""
    known = [moment for moment in moments if moment is not None]
    return round(max(known) - begin, 3) if known and len(known) == len(moments) else None


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


def messages_refused(events: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """Return how many messages the last process of a replica has refused; None while the job goes on."""
    roles = [event for event in events if event["event"] == "roles"]
    found = [role for role in roles[-1]["roles"] if f"{role['role']}-{role['index']}" == name] if roles else []
    return int(found[-1].get("messages", {}).get("refused", 0)) if found else None


def refused_repeats(events: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many updates came again, as the servers of the last job say; None while it goes on."""
    roles = [event for event in events if event["event"] == "roles"]
    if not roles:
        return None
    servers = [role for role in roles[-1]["roles"] if role["role"] == "embedding-server"]
    return sum(int(server.get("updates", {}).get("repeated", 0)) for server in servers)

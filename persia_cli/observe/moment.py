"""The present state of a job, from a file that its coordinator replaces each second, and the rates of its replicas."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from persia_cli.disk import read_regular

MOMENT = "live.json"
"""The file in a run directory; it exists while a job runs, and after all its processes were killed."""

WAITS_FOR = {"nn-worker": "batches", "data-loader": "NN workers"}
"""Role -> what its replicas wait for if they have nothing to do; others wait for messages."""


@dataclass(frozen=True)
class Moment:
    """The state of a job at a time, in seconds since 1970."""

    time: float
    phase: str
    cores: int
    """Cores that the coordinator may use; 0 if unknown."""
    load: float
    """Processes of its machine that compute or wait for a core, for each core; a mean over a minute."""
    roles: Sequence[Mapping[str, Any]]
    """Usage of each replica since it started, as in the event `roles`, and while the job runs what it does."""
    tables: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class ReplicaRates:
    """The rates of a replica, per second; None where one is unknown."""

    name: str
    role: str
    where: str
    """Host and process id."""
    cpu: float | None
    """Cores in use."""
    rss: int | None
    """Resident memory in bytes."""
    queue: int | None
    """Requests that it has to answer."""
    messages: float | None
    """Messages per second, sent and received."""
    nbytes: float | None
    """Bytes of them, also in shared memory, per second."""
    waits: float | None
    """Fraction of the time in which it had nothing to do."""
    doing: str
    silent_s: float
    """Seconds since its last message to the coordinator."""


def read_moment(run_dir: Path, events: Sequence[Mapping[str, Any]]) -> Moment | None:
    """Return the newest state of a run with these events; None if it is not known yet.

    The last state of a job that has ended is in the events. A file of another start of the run does not count.
    """
    begun_s = max((event["time"] for event in events if event["event"] == "began"), default=0.0)
    last = {event["event"]: event for event in events if event["event"] in ("roles", "tables")}
    if (roles := last.get("roles")) is not None and roles["time"] >= begun_s:
        return Moment(roles["time"], "", 0, 0.0, roles["roles"], last.get("tables", {}).get("tables", {}))
    try:
        moment = Moment(**json.loads(read_regular(run_dir / MOMENT)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return moment if moment.time >= begun_s else None


def rates_of(before: Moment | None, now: Moment, is_one_process: bool) -> list[ReplicaRates]:
    """Return the rates of all replicas between two moments, or since they started.

    In one process, CPU and memory are those of the process, and belong to its coordinator's line.
    """
    earlier = {_name(entry): entry for entry in before.roles} if before else {}
    return [_rates(earlier.get(_name(entry), {}), entry, is_one_process) for entry in now.roles]


def _rates(before: Mapping[str, Any], now: Mapping[str, Any], is_one_process: bool) -> ReplicaRates:
    if now.get("ran_s", 0.0) < before.get("ran_s", 0.0):  # another process has taken its place
        before = {}
    seconds = now.get("ran_s", 0.0) - before.get("ran_s", 0.0)
    exchanged, earlier = now.get("exchanged", {}), before.get("exchanged", {})

    def rate(after: Mapping[str, float], first: Mapping[str, float], *keys: str) -> float | None:
        if seconds <= 0 or keys[0] not in after:
            return None
        return sum(after.get(key, 0.0) - first.get(key, 0.0) for key in keys) / float(seconds)

    is_part = is_one_process and now["role"] != "coordinator"
    waits = rate(now, before, "waited_s")
    return ReplicaRates(
        name=_name(now),
        role=now["role"],
        where=f"{now['host']} {now['pid']}" if "pid" in now else "",
        cpu=None if is_part else rate(now, before, "cpu_s"),
        rss=None if is_part else now.get("rss"),
        queue=now.get("queue"),
        messages=rate(exchanged, earlier, "messages"),
        nbytes=rate(exchanged, earlier, "wire", "shared"),
        waits=None if waits is None else min(max(waits, 0.0), 1.0),
        doing=now.get("doing", ""),
        silent_s=now.get("silent_s", 0.0),
    )


def _name(entry: Mapping[str, Any]) -> str:
    return f"{entry['role']}-{entry['index']}"

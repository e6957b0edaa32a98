"""The present state of a job, from a file that its coordinator replaces each second, and what it shows.

It has the rates of the job's replicas, and its bottleneck in one sentence, with what would help.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from persia_cli.config.schema import Run, SyncMode
from persia_cli.disk import read_regular

LIVE_STATE = "live.json"
"""The file in a run directory; it exists while a job runs, and after all its processes were killed."""

WAITS_FOR = {"nn-worker": "batches", "data-loader": "NN workers"}
"""Role -> what its replicas wait for if they have nothing to do; others wait for messages."""


@dataclass(frozen=True)
class LiveState:
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
    behind_s: float | None = None
    """Of data that grows: the age in seconds of the oldest file that is not trained."""


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


def read_live_state(run_dir: Path, events: Sequence[Mapping[str, Any]]) -> LiveState | None:
    """Return the newest state of a run with these events; None if it is not known yet.

    The last state of a job that has ended is in the events. A file of another start of the run does not count.
    """
    started_s = max((event["time"] for event in events if event["event"] == "began"), default=0.0)
    last = {event["event"]: event for event in events if event["event"] in ("roles", "tables")}
    if (roles := last.get("roles")) is not None and roles["time"] >= started_s:
        return LiveState(roles["time"], "", 0, 0.0, roles["roles"], last.get("tables", {}).get("tables", {}))
    try:
        state = LiveState(**json.loads(read_regular(run_dir / LIVE_STATE)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return state if state.time >= started_s else None


def rates_of(before: LiveState | None, now: LiveState, is_one_process: bool) -> list[ReplicaRates]:
    """Return the rates of all replicas between two states, or since they started.

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


BUSY = 0.9
"""Fraction of its time, or of a machine's cores, from which on a replica or a machine counts as fully used."""
IDLE = 0.5
"""Fraction of waiting from which on a role does not limit the speed."""


def bottleneck(run: Run, rates: Sequence[ReplicaRates], now: LiveState, on_gpu: bool) -> str:
    """Return the sentence; empty if too little is known. The `rates` are those of about that time."""
    cores, load = now.cores, now.load
    host = next((rate.where.partition(" ")[0] for rate in rates if rate.role == "coordinator"), "")
    here = [rate for rate in rates if rate.where.partition(" ")[0] == host]
    used = sum(rate.cpu or 0.0 for rate in here)
    waits = {
        role: min(fractions)
        for role in {rate.role for rate in rates} - {"coordinator"}
        if (fractions := [rate.waits for rate in rates if rate.role == role and rate.waits is not None])
    }
    if "nn-worker" not in waits:
        return ""
    if cores and used >= BUSY * cores:
        return (
            f"The {cores} cores of {host} are the bottleneck ({_by_role(here)}). A machine with more of them helps, or "
            "several machines (cluster=hosts)."
        )
    if cores and load >= 1.0 and not on_gpu:
        return f"Other programs use the cores of {host} too: of its {cores}, they leave {used:.1f} to this job."
    if waits["nn-worker"] <= 1.0 - BUSY:
        free = int(cores - used) if cores else 0
        time = f"{1.0 - waits['nn-worker']:.0%} of the time"
        return f"The NN workers are the bottleneck: they work {time}. {_more_arithmetic(run, free, on_gpu)} may help."
    del waits["nn-worker"]
    role = min(waits, key=lambda name: waits[name], default="")
    if role and waits[role] < IDLE:
        name = role.replace("-", " ") + "s"
        more = f"cluster.{role.replace('-', '_')}s={getattr(run.cluster, role.replace('-', '_') + 's') + 1}"
        return f"The {name} are the bottleneck: they wait only {waits[role]:.0%} of the time. {more} may help."
    more = "mode=hybrid" if isinstance(run.mode, SyncMode) else f"mode.staleness={2 * run.mode.staleness}"
    return f"Round trips are the bottleneck: every role waits for others. {more} may help."


def _by_role(rates: Sequence[ReplicaRates]) -> str:
    """Return the cores that each role uses as text, most first."""
    used: dict[str, float] = {}
    for rate in rates:
        used[rate.role] = used.get(rate.role, 0.0) + (rate.cpu or 0.0)
    shown = sorted(((cpu, role) for role, cpu in used.items() if cpu >= 0.05), reverse=True)
    return ", ".join(f"{role} {cpu:.1f}" for cpu, role in shown) if len(shown) > 1 else "all roles together"


def _more_arithmetic(run: Run, free: int, on_gpu: bool) -> str:
    """Return a setting with which NN workers compute faster, by the `free` cores of the machine."""
    workers, threads = run.cluster.nn_workers, run.train.threads
    if on_gpu:
        return f"A greater train.batch_size, or a GPU more and cluster.nn_workers={workers + 1},"
    if free >= workers:
        return f"train.threads={threads + free // workers}"
    return f"More machines and cluster.nn_workers={workers + 1}"

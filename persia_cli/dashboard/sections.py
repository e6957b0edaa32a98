"""The tables and notes of a run, as texts."""

import time

from persia_cli.metric import is_of_retrieval
from persia_cli.observe.exchange import bytes_per_sample, lookups
from persia_cli.observe.history import QUALITY, Line, RunHistory, outcome_of, recoveries_in
from persia_cli.store.table_counters import OF_COLD

COUNTERS = ("rows", "hits", "misses", "evicted", "refused", "not_admitted", "gradients_refused")
"""Counters of a table that a page shows."""

Rows = list[list[str]]


def sections(history: RunHistory) -> dict[str, Rows]:
    """Return the tables of a run by title, each with its head as first row; one without other rows is not shown."""
    return {
        "Evaluations": _evaluations(history),
        "Retrieval": _retrieval(history),
        "Tables": _tables(history),
        "Ids without a row": _unknown(history),
        "Bytes between roles": _exchanged(history),
        "Processes": _processes(history),
        "Recoveries": _recoveries(history),
    }


def notes(history: RunHistory) -> list[str]:
    """Return the messages and warnings of a run."""
    return [event["text"] for event in history.events if event["event"] in ("warning", "note", "stopped_early")]


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _evaluated(history: RunHistory) -> list[tuple[str, Line]]:
    """Return the lines of evaluations, those of later `persia eval` last and with their names."""
    return [("", line) for line in history.evaluations] + [
        (f"{'test' if line['split'] == 'test' else 'persia eval'}, {name}", line) for name, line in history.later
    ]


def _evaluations(history: RunHistory) -> Rows:
    """Return a row for each evaluation and label."""
    lines = _evaluated(history)
    several = len(history.labels) > 1
    known = {
        key
        for key in QUALITY
        for _, line in lines
        for label in history.labels
        if history.metric(line, key, label) is not None
    }
    there = [key for key in QUALITY if key in known]
    rows = [["", "step", "samples", *(QUALITY[key] for key in there), "ids without a row"]]
    for name, line in lines:
        for label in history.labels:
            what = f"{label}, {name or 'in training'}" if several else name or "in training"
            values = [history.metric(line, key, label) for key in there]
            metrics = ["-" if value is None else f"{value:.6f}" for value in values]
            unknown = line.get("unknown")
            metrics.append("-" if unknown is None else f"{unknown:.2%}")
            rows.append([what, f"{line['step']:,}", f"{line['eval_samples']:,}", *metrics])
    return rows


def _retrieval(history: RunHistory) -> Rows:
    """Return a row for each evaluation that ranked all items."""
    lines = [(name, line) for name, line in _evaluated(history) if any(map(is_of_retrieval, line))]
    keys = list(dict.fromkeys(key for _, line in lines for key in line if is_of_retrieval(key)))
    rows = [["", "step", *keys]]
    for name, line in lines:
        metrics = [f"{line[key]:.6f}" if key in line else "" for key in keys]
        rows.append([name or "in training", f"{line['step']:,}", *metrics])
    return rows


def _tables(history: RunHistory) -> Rows:
    event = history.last_event("tables") or {"tables": {}}
    counters = (*COUNTERS, *(OF_COLD if history.run.embedding.cold is not None else ()))
    counted = [[name, *(f"{table.get(c, 0):,}" for c in counters)] for name, table in event["tables"].items()]
    return [["table", *(counter.replace("_", " ") for counter in counters)], *counted]


def _processes(history: RunHistory) -> Rows:
    """Return a row for each process; threads of one process have each reported the usage of all of it."""
    roles = (history.last_event("roles") or {"roles": []})["roles"]
    head = ["process", "CPU seconds", "MiB at the end"]
    used = [(f"{role['role']}-{role['index']}", role["cpu_s"], role["rss"]) for role in roles]
    if is_one := bool(roles) and history.run.cluster.is_one_process:
        used = [("all roles", max(cpu_s for _, cpu_s, _ in used), max(rss for *_, rss in used))]
    rows = [[name, f"{cpu_s:,.1f}", f"{rss / 2**20:,.0f}"] for name, cpu_s, rss in used]
    shares = [f"{role['waited_s'] / role['ran_s']:.0%}" if role.get("ran_s") else "-" for role in roles]
    more = {"without work": shares, "processors": [role.get("cpus", "all") for role in roles]}
    for title, cells in more.items():
        if set(cells) - {"-", "all"} and not is_one:
            head, rows = [*head, title], [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
    return [head, *rows]


def _unknown(history: RunHistory) -> Rows:
    """Return a row for each feature some of whose evaluated ids had no row."""
    found = [each for each in lookups(history.events) if each.known < each.total]
    rows = [[each.name, f"{each.total:,}", f"{1 - each.known / each.total:.2%}"] for each in found]
    return [["feature", "look-ups in evaluations", "without a row"], *rows]


def _exchanged(history: RunHistory) -> Rows:
    found = bytes_per_sample(history.events, history.lines, history.run.train.batch)
    rows = [[each.link, f"{each.total:,.0f}", f"{each.shared:.0%}"] for each in found]
    return [["roles", "bytes per sample", "in shared memory"], *rows]


def _recoveries(history: RunHistory) -> Rows:
    found = [
        [event["replica"], _clock(event["time"]), event["cause"], outcome_of(event)]
        for event in recoveries_in(history.events)
    ]
    return [["died", "recovered at", "cause", "recovered"], *found]

"""The data of pages: of one run, and of a comparison of several."""

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from persia_cli.config.record import CONFIG
from persia_cli.config.schema import SyncMode
from persia_cli.dashboard.folder import Folder
from persia_cli.dashboard.sections import notes, sections
from persia_cli.disk import read_regular
from persia_cli.errors import PersiaError
from persia_cli.jobs.description import model_description, training_description
from persia_cli.observe import staleness
from persia_cli.observe.history import RunHistory, key_metrics, read_history
from persia_cli.observe.journal import understanding
from persia_cli.observe.overview import differing_settings

MAX_ROWS = 200
"""Rows at the end of a table that are shown."""


def details(history: RunHistory, now: float) -> dict[str, Any]:
    """Return all that the page of a run shows besides curves and logs; `now` is in seconds since 1970."""
    outcome, run = history.outcome(now), history.run
    return {
        "name": run.name,
        "state": outcome.state,
        "text": outcome.text,
        "began_s": history.begin_s,
        "last_s": history.end_s,
        "facts": key_metrics(history),
        "notes": notes(history),
        "tables": {title: rows[:1] + rows[1:][-MAX_ROWS:] for title, rows in sections(history).items() if rows[1:]},
        "staleness": _staleness(history),
        "reliability": history.reliability,
        "summary": {
            "model": model_description(run),
            "training": training_description(run),
            "run directory": str(history.run_dir.absolute()),
        },
        "config": read_regular(history.run_dir / CONFIG).decode(errors="replace"),
    }


def _staleness(history: RunHistory) -> dict[str, Any] | None:
    """Return the percentage of steps by the staleness of their rows, or by ranges of it; None without steps."""
    ranks = [rank for line in history.training for rank in line["staleness"]]
    total = staleness.merged([{int(value): steps for value, steps in rank.items()} for rank in ranks])
    if not (steps := sum(total.values())):
        return None
    shown, mode = staleness.ranges(total), history.run.mode
    names = [str(end) if end <= 2 or shown == total else f"{end // 2 + 1}-{end}" for end in shown]
    return {
        "mean": staleness.mean(total),
        "bound": None if isinstance(mode, SyncMode) else mode.staleness,
        "shares": {name: 100.0 * count / steps for name, count in zip(names, shown.values(), strict=True)},
    }


def run_details(folder: Folder, name: str) -> dict[str, Any]:
    """Return the details of a run in a folder; of a damaged one, the reason and the configuration."""
    path, config = folder.run(name), ""
    try:
        config = read_regular(path / CONFIG).decode(errors="replace")
        history = read_history(path)
        with understanding(path):
            return details(history, time.time())
    except (PersiaError, OSError) as error:
        return {"name": name, "state": "damaged", "text": str(error), "config": config}


def comparison(folder: Folder, names: Sequence[str]) -> dict[str, Any]:
    """Return the settings in which runs differ and their metrics; a run that is damaged has a reason instead."""
    found, damaged = {}, {}
    for name in names:
        path = folder.run(name)
        try:
            history = read_history(path)
            with understanding(path):
                found[name] = history.run, key_metrics(history)
        except (PersiaError, OSError) as error:
            damaged[name] = str(error).splitlines()[0]
    settings = differing_settings([run for run, _ in found.values()])
    keys = dict.fromkeys(key for _, facts in found.values() for key in facts)
    facts = {key: [facts.get(key, "-") for _, facts in found.values()] for key in keys}
    return {"runs": list(found), "damaged": damaged, "settings": settings, "facts": facts}


def to_json(value: Any) -> bytes:
    """Return JSON; a name that is not in UTF-8, and other halves of characters, are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()

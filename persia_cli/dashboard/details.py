"""Details of one run and a comparison of several, besides curves."""

import time
from collections.abc import Sequence
from typing import Any

from persia_cli.config.record import CONFIG
from persia_cli.dashboard.folder import Folder
from persia_cli.disk import read_regular
from persia_cli.errors import PersiaError
from persia_cli.observe.history import key_metrics, read_history
from persia_cli.observe.journal import understanding
from persia_cli.observe.overview import differing_settings
from persia_cli.observe.report_page import notes, sections

MAX_ROWS = 200
"""Rows at the end of a table that are shown."""


def run_details(folder: Folder, name: str) -> dict[str, Any]:
    """Return the facts, tables and configuration of a run; of a damaged one, the reason."""
    path, config = folder.run(name), ""
    try:
        config = read_regular(path / CONFIG).decode(errors="replace")
        history = read_history(path)
        with understanding(path):
            outcome, reliability = history.outcome(time.time()), history.reliability
            return {
                "run": name,
                "name": history.run.name,
                "state": outcome.state,
                "text": outcome.text,
                "began_s": history.begin_s,
                "last_s": history.end_s,
                "facts": key_metrics(history),
                "notes": notes(history),
                "tables": {
                    title: rows[:1] + rows[1:][-MAX_ROWS:] for title, rows in sections(history).items() if len(rows) > 1
                },
                "reliability": reliability,
                "config": config,
            }
    except (PersiaError, OSError) as error:
        return {"run": name, "name": name, "state": "damaged", "text": str(error), "config": config}


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

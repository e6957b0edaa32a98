"""The processes and events of a running job, as its driver and its record have them."""

from pathlib import Path
from typing import Any

from persia_cli.engines.processes import PROC, RunningProcess, argv_of, parent_of, process_of
from persia_cli.observe.history import EARLIER
from persia_cli.observe.journal import EVENTS, read_journal

LAUNCH_ROLE = "launch-role"


def events_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the events of a run in order, those of its earlier starts first."""
    starts = sorted((run_dir / EARLIER).glob("start*"), key=lambda path: int(path.name.partition("-")[2] or 1))
    return [event for folder in [*starts, run_dir] for event in read_journal(folder / EVENTS)]


def replicas_of(driver: int) -> dict[str, RunningProcess]:
    """Return the running replicas that are children of a driver, by name."""
    running = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or parent_of(int(entry.name)) != driver:
            continue
        command = argv_of(int(entry.name))
        process = process_of(int(entry.name))
        if LAUNCH_ROLE in command and "--index" in command and process is not None and process.lives:
            role, index = command[command.index(LAUNCH_ROLE) + 1], command[command.index("--index") + 1]
            running[f"{role}-{index}"] = process
    return running

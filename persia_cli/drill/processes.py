"""The processes of a job of this machine."""

import socket
import time
from collections.abc import Iterable
from pathlib import Path

from persia_cli.errors import UserError
from persia_cli.launch.running import PROC, RunningProcess, parent_of, process_of, words_of
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, is_being_written, read_journal

POLL_S = 0.01
LAUNCH_ROLE = "launch-role"


def replicas_of(launcher: int) -> dict[str, RunningProcess]:
    """Return the running replicas that are children of a launcher, by name."""
    found = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or parent_of(int(entry.name)) != launcher:
            continue
        words = words_of(int(entry.name))
        process = process_of(int(entry.name))
        if LAUNCH_ROLE in words and "--index" in words and process is not None and process.lives:
            role, index = words[words.index(LAUNCH_ROLE) + 1], words[words.index("--index") + 1]
            found[f"{role}-{index}"] = process
    return found


def secret_file_of(replica: RunningProcess) -> Path | None:
    """Return the file with the token or the keys of a replica's job."""
    words = words_of(replica.pid)
    options = [option for option in ("--token-file", "--key-file") if option in words]
    return Path(words[words.index(options[0]) + 1]) if options else None


def wait_until_ended(processes: Iterable[RunningProcess], limit_s: float) -> list[RunningProcess]:
    """Wait until processes have ended; return those that have not within so many seconds."""
    deadline = time.monotonic() + limit_s
    left = list(processes)
    while (left := [each for each in left if each.lives]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def launcher_of(run_dir: Path) -> int:
    """Return the process of `persia train` whose job a run is; raises UserError if there is none on this machine."""
    if not (run_dir / CONFIG).is_file():
        raise UserError(
            f"{run_dir} is not a run directory: it has no {CONFIG}; give the folder that persia train named"
        )
    began = [event for event in read_journal(run_dir / EVENTS) if event["event"] == "began"]
    if not began:
        raise UserError(f"the run in {run_dir} has not begun to train; try again in a moment")
    if began[-1]["host"] != socket.gethostname():
        raise UserError(f"the run in {run_dir} was started on {began[-1]['host']}; run this command there")
    if not is_being_written(run_dir / EVENTS):
        raise UserError(f"the run in {run_dir} is not running, so it cannot be disturbed")
    launcher = parent_of(int(began[-1]["pid"]))
    if "coordinator-0" not in replicas_of(launcher):
        raise UserError(
            f"the job of {run_dir} was not started by persia train in processes of their own (cluster=local)"
        )
    return launcher

"""The request to a running job to save its model and go on: SIGUSR2 to its coordinator, and the wait for the answer."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from persia_cli.config.record import read_run
from persia_cli.errors import RoleError, UserError
from persia_cli.launch.job import JOB
from persia_cli.launch.running import RunningProcess, process_of
from persia_cli.observe.history import CONFIG, ENDS
from persia_cli.observe.journal import EVENTS, Tail, is_being_written, read_journal
from persia_cli.plan.job import Job
from persia_cli.store.manifest import checkpoint_folder, checkpoints_of, finished_steps

ANSWER_S = 30.0
"""Seconds within which a coordinator takes a request; it looks for one five times a second."""
GOING_BACK_S = 120.0
"""Seconds within which a job that goes back to a checkpoint is running again."""
NOTICED_S = 3.0
"""Seconds within which a supervisor has noted the death of a coordinator, if there is one."""
POLL_S = 0.1
COORDINATOR = "coordinator-0"


def save_now(run_dir: Path, note: Callable[[str], None]) -> str:
    """Have the job of a run save its model, and return the place of the checkpoint once it is complete.

    `note` is told what the job does first, if it does not save at once. Raises UserError if no job of the run is
    running here, or if it ends or has nothing to save; RoleError if its coordinator does not answer.
    """
    if not (run_dir / CONFIG).is_file():
        raise UserError(
            f"{run_dir} is not a run directory: it has no {CONFIG}; give the folder that persia train named"
        )
    for line in _answers(run_dir):
        match line["event"]:
            case "save_asked" if line["phase"] == "saving":
                note("it is saving already; waiting for that checkpoint")
            case "save_asked" if line["phase"] != "training":
                note(f"it is {line['phase']}; it saves after that")
            case "saved":
                return str(line["path"])
            case "save_refused":
                return _newest(run_dir, f"saved nothing: {line['text']}")
    raise _ended(run_dir)


def _coordinator_of(run_dir: Path) -> int | None:
    """Return the process of the run's coordinator, which takes requests; waits for the next one if it has just died.

    None if the job has ended. Raises UserError if there is none here.
    """
    begin, pid = time.monotonic(), 0
    while True:
        lines, job = read_journal(run_dir / EVENTS), _job_of(run_dir)
        began = coordinators_in(lines)
        if began:
            host, pid = began[-1]["host"], int(began[-1]["pid"])
            if host != socket.gethostname():
                raise UserError(f"the run in {run_dir} was started on {host}; run this command there")
            if is_alive(pid) and is_being_written(run_dir / EVENTS):
                break
        elif job.rollback is None and time.monotonic() - begin > NOTICED_S:
            raise UserError(f"the run in {run_dir} has not begun to train, so there is nothing to save")
        if time.monotonic() - begin > _patience_s(lines, job, pid):
            return None
        time.sleep(POLL_S)
    if not takes_requests(pid):
        raise UserError(f"process {pid}, which trains {run_dir}, takes no requests: another program started the job")
    return pid


def _job_of(run_dir: Path) -> Job:
    try:
        return Job.from_json((run_dir / JOB).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{run_dir / JOB} cannot be read: {error}") from None


def _patience_s(lines: Sequence[dict[str, Any]], job: Job, pid: int) -> float:
    """Return for how long a coordinator may be away, by the events of its job; `pid` is that of the last one, or 0."""
    ended = [line["phase"] for line in lines if line.get("phase") in ENDS]
    if "done" not in ended and job.launcher != pid and launcher_of(job).lives:
        return GOING_BACK_S
    if ended:
        return 0.0
    return ANSWER_S if _is_replaced(lines) else NOTICED_S


def coordinators_in(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events that say where the coordinator, and each that took its place, has begun."""

    def took_over(event: dict[str, Any]) -> bool:
        return event["event"] == "recovered" and event["replica"] == COORDINATOR and "host" in event

    return [event for event in events if event["event"] == "began" or took_over(event)]


def _is_replaced(lines: Sequence[dict[str, Any]]) -> bool:
    """Return whether a supervisor has noted the coordinator's death, and starts the next one."""
    said = [line["event"] for line in lines if line.get("replica") == COORDINATOR]
    return bool(said) and said[-1] == "died"


def launcher_of(job: Job) -> RunningProcess:
    """Return the process that launched a job, which may have ended."""
    return RunningProcess(job.launcher, job.launcher_began)


def is_alive(pid: int) -> bool:
    """Return whether a process runs, and has not ended without its parent's taking note."""
    process = process_of(pid)
    return process is not None and process.lives


def takes_requests(pid: int) -> bool:
    """Return whether a process has a handler of SIGUSR2, which would end it otherwise (Linux, proc(5))."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)
    return False


def _ask(run_dir: Path) -> int | None:
    """Ask the run's coordinator for a checkpoint; return its process, None if the job has ended."""
    while (pid := _coordinator_of(run_dir)) is not None:
        try:
            os.kill(pid, signal.SIGUSR2)
            break
        except ProcessLookupError:
            continue  # it has just died
        except PermissionError:
            whose = f"process {pid}, which trains {run_dir}, belongs to another user"
            raise UserError(f"{whose}; ask as that user") from None
    return pid


def _answers(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Ask for a checkpoint, and yield the events that come after the request was taken, as long as the job goes on.

    A coordinator that dies before it has taken note of the request leaves it to nobody, so the next one is asked; so is
    that of a job that goes back to a checkpoint, which has forgotten the request and begins its events anew.
    """
    rollback, events = _job_of(run_dir).rollback, Tail(run_dir / EVENTS)
    list(events.new())
    pid, taken, deadline = _ask(run_dir), False, time.monotonic() + ANSWER_S
    while True:
        alive = pid is not None and is_alive(pid)
        if (now := _job_of(run_dir).rollback) != rollback:
            rollback, events, taken, alive = now, Tail(run_dir / EVENTS), False, False
        for line in events.new():
            taken = taken or line["event"] in ("save_asked", "save_refused")
            if taken:
                yield line
            if line.get("phase") == "done":
                return
        if pid is None:
            return
        if not alive:
            pid, deadline = _coordinator_of(run_dir) if taken else _ask(run_dir), time.monotonic() + ANSWER_S
        elif not taken and time.monotonic() > deadline:
            raise RoleError(f"the coordinator of {run_dir} has not answered for {ANSWER_S:g} s; see its log")
        time.sleep(POLL_S)


def _newest(run_dir: Path, why: str) -> str:
    """Return the newest checkpoint where a new one would be the same; raises UserError if there is none."""
    checkpoints = checkpoints_of(run_dir, read_run(run_dir / CONFIG).checkpoint.path)
    steps = finished_steps(checkpoints)
    if not steps:
        raise UserError(f"the run in {run_dir} {why}")
    return str(checkpoint_folder(checkpoints, steps[-1]))


def _ended(run_dir: Path) -> UserError:
    try:
        return UserError(f"the run in {run_dir} is not running; its newest checkpoint is {_newest(run_dir, '')}")
    except UserError:
        return UserError(f"the run in {run_dir} is not running, and it has no checkpoint")

"""A job whose coordinator `persia launch-role` has started here: on Kubernetes, by a scheduler or by hand."""

import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from persia_cli.commands.endings import INTERRUPTED
from persia_cli.commands.followed import going_on, plan_of
from persia_cli.commands.progress import following
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import err, say
from persia_cli.config.record import read_run
from persia_cli.config.schema import Run
from persia_cli.engines.background import LOG
from persia_cli.engines.job import JOB, ROLES, recorded_failure, result_of
from persia_cli.engines.role import read_job
from persia_cli.engines.running import RunningProcess, handles, process_of
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import PreemptedError, RoleError, UserError
from persia_cli.observe.history import CONFIG, ENDS
from persia_cli.observe.journal import EVENTS, is_being_written, read_journal
from persia_cli.plan.job import Job

POLL_S = 0.2
GONE_S = 3.0
"""Seconds after which a process that is not there, or heeds no signals yet, has ended."""
ENDING_S = 60.0
"""Seconds for the end of a job that was told to end, besides those in which it saves the model."""


def attach_to_launched(run_dir: Path) -> None:
    """Show a job to its end; whoever ends this command leaves the job alone."""
    _require_run(run_dir, "attach")
    try:
        with terminating_interrupts():
            _show(run_dir)
    except KeyboardInterrupt:
        say(err(), f"the job goes on: persia attach {shlex.quote(str(run_dir))} shows it again")
        sys.exit(INTERRUPTED)
    end = _end_of(run_dir)
    match end.get("phase"):
        case "done":
            show_results(plan_of(run_dir), result_of(run_dir), [])
        case "stopped":
            name = end.get("signal")
            say(err(), f"{name or 'interrupted'}: everything is stopped; {going_on(run_dir)}")
            sys.exit(PreemptedError.exit_code if name else INTERRUPTED)
        case _:
            gone = f"the coordinator of {run_dir} has ended without a word; whatever started it has its log"
            raise recorded_failure(run_dir) or RoleError(gone)


def stop_launched(run_dir: Path, at_once: bool) -> None:
    """Have a job save its model and end."""
    run = _require_run(run_dir, "stop")
    if run.cluster.kind == "kubernetes":
        from persia_cli.engines.kubernetes.kubectl import stop_line

        line = stop_line(run_dir.absolute().name, _namespace(run))
        raise UserError(f"Kubernetes would start this job again, so it is stopped there: {line} saves the model first")
    _require_here(run_dir)
    processes = _processes_of(run_dir, read_job(run_dir / JOB))
    if _end_of(run_dir) or not processes:
        raise UserError(
            f"the job of {run_dir} is not running; persia report {shlex.quote(str(run_dir))} shows its figures"
        )
    process = processes[0]
    if at_once:
        raise UserError(f"--now is for cluster=hosts, ray and slurm; kill -INT {process.pid} ends this job at once")
    try:
        process.send(signal.SIGUSR1)
    except PermissionError:
        whose = f"process {process.pid}, which trains {run_dir}, belongs to another user"
        raise UserError(f"{whose}; stop it as that user") from None
    limit_s = run.checkpoint.grace_s + ENDING_S
    begin = time.monotonic()
    while process.lives:
        if time.monotonic() - begin > limit_s:
            raise RoleError(f"the job of {run_dir} has not ended within {limit_s:g} s; see the log of its coordinator")
        time.sleep(POLL_S)
    say(err(), f"everything is stopped; {going_on(run_dir)}")
    sys.exit(PreemptedError.exit_code)


def require_logs_here(run_dir: Path, role: str) -> None:
    """Raise UserError for a job whose logs are elsewhere: with Kubernetes, or with whoever started its roles."""
    if not (run_dir / CONFIG).is_file():
        return
    run = read_run(run_dir / CONFIG)
    if run.cluster.kind == "kubernetes":
        from persia_cli.engines.kubernetes.kubectl import logs_line

        line = logs_line(run_dir.absolute().name, role, _namespace(run))
        raise UserError(f"the logs of {run_dir} are with Kubernetes: {line}")
    if run.cluster.kind != "embedded" and not any((run_dir / ROLES).glob(f"*{LOG}")):
        by_hand = "its roles were started by hand, and write to their standard error or, with --background, to a folder"
        raise UserError(f"{run_dir} has no logs: {by_hand}")


def _require_run(run_dir: Path, command: str) -> Run:
    """Return the run of a folder; raises UserError if there is none, with what a job on Kubernetes needs."""
    if not ((run_dir / CONFIG).is_file() and (run_dir / JOB).is_file()):
        from persia_cli.engines.kubernetes import kubectl

        line = (kubectl.attach_line if command == "attach" else kubectl.stop_line)(run_dir.absolute().name)
        raise UserError(f"{run_dir} is not the run directory of a job; if the job runs on Kubernetes: {line}")
    return read_run(run_dir / CONFIG)


def _namespace(run: Run) -> str | None:
    return run.cluster.namespace if run.cluster.kind == "kubernetes" else None


def _show(run_dir: Path) -> None:
    """Show a job until it has ended; one that fails may go back to a checkpoint and begin again."""
    while True:
        _require_here(run_dir)
        plan, start = plan_of(run_dir), _start_of(run_dir)
        with following(err(), run_dir, plan.job, plan.run.train.batch_size) as follow:
            seen_s = time.monotonic()
            while _start_of(run_dir) in (start, None):
                end = _end_of(run_dir).get("phase")
                if _processes_of(run_dir, plan.job):
                    seen_s = time.monotonic()
                follow()
                # A container that ends takes this command with it, so the end is shown as soon as it is known.
                if end in ("done", "stopped") or time.monotonic() - seen_s > GONE_S:
                    return
                time.sleep(POLL_S)


def _processes_of(run_dir: Path, job: Job) -> list[RunningProcess]:
    """Return which processes run of that which started a coordinator and its own; a stranger's handles no signals.

    A later process with the number of one that was killed is not among them: a coordinator holds the journal.
    """
    found = [RunningProcess(job.launcher, job.launcher_began)]
    began = _coordinators_in(read_journal(run_dir / EVENTS))
    if began and is_being_written(run_dir / EVENTS) and (coordinator := process_of(int(began[-1]["pid"]))) is not None:
        found.append(coordinator)
    return [process for process in found if process.lives and handles(process.pid, signal.SIGUSR1)]


def _coordinators_in(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with the machine and process of each coordinator."""
    return [event for event in events if event["event"] == "began"]


def _start_of(run_dir: Path) -> int | None:
    """Return another number for each start of a job; None while one is being prepared."""
    try:
        return (run_dir / JOB).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _end_of(run_dir: Path) -> dict[str, Any]:
    """Return the event that ended the last start of a job; empty if it goes on."""
    return next((event for event in reversed(read_journal(run_dir / EVENTS)) if event.get("phase") in ENDS), {})


def _require_here(run_dir: Path) -> None:
    """Raise UserError for a job that goes on on another machine."""
    hosts = [str(event["host"]) for event in _coordinators_in(read_journal(run_dir / EVENTS))]
    if hosts and hosts[-1] != socket.gethostname() and not _end_of(run_dir):
        raise UserError(f"the run in {run_dir} was started on {hosts[-1]}; give this command there")

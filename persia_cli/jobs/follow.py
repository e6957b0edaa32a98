"""A job by its run directory, whatever runs it: followed to its end, stopped, and how it ended."""

import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from persia_cli.config.record import read_run
from persia_cli.data.read.facts import DatasetFacts
from persia_cli.engines.driver_process import (
    INTERRUPTED,
    KILLED,
    LOG,
    RECORD,
    code_of,
    driver_of,
    driver_record,
    is_submitted,
)
from persia_cli.engines.engine import FollowedJob, JobDriver, engine_of
from persia_cli.engines.job import ERROR_LINE, JOB, ROLES, JobResult, read_job, recorded_failure, result_of
from persia_cli.engines.output import has_no_reader
from persia_cli.engines.resumed import DRIVER
from persia_cli.engines.signals import ENDING_SIGNALS, handling
from persia_cli.errors import OrderlyEndError, PersiaError, PreemptedError, RoleError, UserError, one_line
from persia_cli.jobs.reporter import SILENT, Reporter
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, read_journal, understanding
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import JobPlan, all_replicas

POLL_S = 0.1
GONE_S = 3.0
"""Seconds for which a driver may be missing: one that has just been started handles no signals yet."""
ENDING_S = 60.0
"""Seconds for the end of a job after `persia stop`, besides those in which it saves the model and ends its roles."""


def job_of(run_dir: Path, reporter: Reporter = SILENT) -> FollowedJob:
    """Return the job of a run directory; raises UserError if there is none, or if it is on another machine."""
    if is_submitted(run_dir):
        return engine_of(read_run(run_dir / CONFIG).cluster).job_elsewhere(run_dir, reporter.options())
    if not ((run_dir / DRIVER / RECORD).is_file() or ((run_dir / CONFIG).is_file() and (run_dir / JOB).is_file())):
        from persia_cli.engines.kubernetes.names import attach_line, stop_line

        name = run_dir.absolute().name
        lines = f"{attach_line(name)} shows it, {stop_line(name)} saves and ends it"
        raise UserError(f"{run_dir} is not the run directory of a job; if the job runs on Kubernetes: {lines}")
    return JobHere(run_dir, driver_of(run_dir), reporter)


class JobHere:
    """A job whose run directory is its own."""

    def __init__(self, run_dir: Path, driver: JobDriver, reporter: Reporter) -> None:
        self._run_dir, self._driver, self._reporter = run_dir, driver, reporter

    def fetch(self) -> None:
        """Do nothing: the run directory is up to date."""

    def show(self, poll: Callable[[], None], say: Callable[[str], None]) -> None:
        """Show the progress of each start, and what the driver prints, until it has ended."""
        noted, log = _time_of(self._run_dir / DRIVER / RECORD), _Lines(self._run_dir / DRIVER / LOG)
        shown_start, waits_for, follow = 0, "", _nothing
        seen_s = time.monotonic()
        with ExitStack() as view:
            while True:
                runs = self._driver.running  # before its record is read, so that all of it is
                seen_s = time.monotonic() if runs else seen_s
                start = _time_of(self._run_dir / JOB)
                if start not in (0, shown_start) and start >= noted:
                    view.close()
                    plan, shown_start = plan_of(self._run_dir), start
                    follow = view.enter_context(self._reporter.following(self._run_dir, plan.job, plan.run.train.batch))
                follow()
                for line in log.new():
                    say(line)
                if (text := self._driver.waits_for) != waits_for:
                    waits_for = text
                    if text:
                        self._reporter.labelled("job", text)
                if not runs and (noted or _has_ended(self._run_dir) or time.monotonic() - seen_s > GONE_S):
                    return
                poll()
                time.sleep(POLL_S)

    def stop(self, at_once: bool) -> None:
        """Have it saved and ended, or ended `at_once`."""
        self._driver.stop(at_once)

    def stop_and_wait(self, at_once: bool) -> None:
        """Do the same, and wait for the end; a job that takes too long is killed."""
        if not self._driver.running:
            raise UserError(f"the job of {self._run_dir} has ended: persia logs {self._run_dir} shows how")
        self.stop(at_once)
        limit_s = ENDING_S
        if (self._run_dir / CONFIG).is_file():
            run = read_run(self._run_dir / CONFIG)
            limit_s += run.checkpoint.grace_s + 4 * run.cluster.stop_timeout_s
        begin = time.monotonic()
        while self._driver.running:
            if time.monotonic() - begin > limit_s:
                self._driver.kill()
                raise RoleError(f"the job of {self._run_dir} has not ended within {limit_s:g} s, and is killed")
            time.sleep(POLL_S)


def _nothing() -> None:
    """Show nothing."""


class _Lines:
    """The lines of a driver's log, up to the error that ends it."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._failed = path, 0, False

    def new(self) -> list[str]:
        """Return the lines since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data, whole, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read += len(data) + len(whole)
        lines = []
        for line in data.decode(errors="replace").splitlines():
            self._failed = self._failed or line.startswith(ERROR_LINE)
            lines += [] if self._failed else [line]
        return lines


def _time_of(path: Path) -> int:
    """Return when a file was written, in ns; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _has_ended(run_dir: Path) -> bool:
    return code_of(run_dir) in (0, PreemptedError.exit_code, INTERRUPTED)


class LeftAloneError(OrderlyEndError):
    """The command ends, and the job goes on without it."""

    def __init__(self, run_dir: Path) -> None:
        shown = f"persia attach {shlex.quote(str(run_dir))} shows it, persia stop ends it"
        super().__init__(f"the job goes on: {shown}", INTERRUPTED)


@contextmanager
def noting_signals() -> Iterator[deque[int]]:
    """Yield the signals that come in the block, which have no other effect."""
    signals: deque[int] = deque()
    with handling((*ENDING_SIGNALS, signal.SIGINT, signal.SIGHUP), signals.append):
        yield signals


def follow_to_end(run_dir: Path, signals: deque[int], stops: bool, reporter: Reporter) -> tuple[JobPlan, JobResult]:
    """Report a job until it has ended; return its plan and its result, or raise how it failed.

    With `stops`, Ctrl-C among `signals` ends the job, and SIGTERM has it saved before that. Otherwise, and if the
    terminal or the reader of its output ends, the job goes on without this command: LeftAloneError.
    """
    job = job_of(run_dir, reporter)
    try:
        _follow(run_dir, job, signals, stops, reporter)
    except LeftAloneError:
        with suppress(PersiaError):
            job.fetch()
        raise
    except BaseException as error:
        # This command has failed, not the job.
        error.add_note(f"The job goes on: persia attach {run_dir} shows it, persia stop {run_dir} ends it.")
        raise
    job.fetch()
    require_done(run_dir)
    return plan_of(run_dir), result_of(run_dir)


def show_progress(run_dir: Path, signals: deque[int], stops: bool, reporter: Reporter) -> None:
    """Report a job until it has ended, for a command on another machine, which has the rest of `follow_to_end`.

    Raises LeftAloneError if this command ends before the job.
    """
    _follow(run_dir, job_of(run_dir, reporter), signals, stops, reporter)


def _follow(run_dir: Path, job: FollowedJob, signals: deque[int], stops: bool, reporter: Reporter) -> None:
    """Report a job until it has ended; raises LeftAloneError if this command ends before it."""

    def poll() -> None:
        while signals:
            number = signals.popleft()
            if number == signal.SIGHUP or not stops:
                raise LeftAloneError(run_dir)
            job.stop(at_once=number == signal.SIGINT)
        if has_no_reader():
            raise LeftAloneError(run_dir)

    job.show(poll, reporter.say)


def stop(run_dir: Path, at_once: bool) -> None:
    """Have a running job saved and ended, or ended `at_once`, and wait for that; raises how it failed.

    Raises OrderlyEndError, with what is saved, for one that was stopped.
    """
    _refuse_foreign(run_dir)
    job = job_of(run_dir)
    job.stop_and_wait(at_once)
    job.fetch()
    require_done(run_dir)


def logs_of(run_dir: Path, role: str) -> dict[str, Path]:
    """Return the logs of a run's driver and replicas by name; of one role or replica, if `role` names it.

    Raises UserError if there are none.
    """
    logs = {path.stem: path for folder in (DRIVER, ROLES) for path in sorted((run_dir / folder).glob("*.log"))}
    chosen = {name: path for name, path in logs.items() if role in ("", name, name.rpartition("-")[0])}
    if not chosen:
        there = f"there are {', '.join(logs)}" if logs else _where_logs_are(run_dir, role)
        raise UserError(f"{run_dir} has no logs{f' of {role}' if role else ''}: {there}")
    return chosen


def stops_with_command(run_dir: Path) -> bool:
    """Return whether Ctrl-C ends the job of a run directory together with the command that shows it."""
    return is_submitted(run_dir) or ((record := driver_record(run_dir)) is not None and not record.job)


def _refuse_foreign(run_dir: Path) -> None:
    """Raise UserError for a job that other programs would start again, such as Kubernetes."""
    if (run_dir / CONFIG).is_file():
        cluster = read_run(run_dir / CONFIG).cluster
        if line := engine_of(cluster).stop_line(run_dir.absolute().name):
            name = cluster.name.capitalize()
            raise UserError(f"{name} would start this job again, so it is stopped there: {line} saves the model first")


def _where_logs_are(run_dir: Path, role: str) -> str:
    """Return where the logs of a run are that are not in its directory."""
    line = ""
    if (run_dir / CONFIG).is_file():
        line = engine_of(read_run(run_dir / CONFIG).cluster).logs_line(run_dir.absolute().name, role)
    return line or "roles that are started by hand write to their standard error"


def require_done(run_dir: Path) -> None:
    """Raise how a job has ended, unless all was done: OrderlyEndError for one that was stopped."""
    code = code_of(run_dir)
    if not code:
        return
    if code in (PreemptedError.exit_code, INTERRUPTED):
        raise OrderlyEndError(f"{_signal_of(run_dir)}: everything is stopped; {_how_to_continue(run_dir)}", code)
    raise _failure_of(run_dir, code)


def _signal_of(run_dir: Path) -> str:
    ends = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "stopped"]
    name = str(ends[-1].get("signal") or "interrupted") if ends else "interrupted"
    return "stopped on request" if name == signal.SIGUSR1.name else name  # so drivers ask a coordinator


def _failure_of(run_dir: Path, code: int) -> PersiaError:
    """Return the error that has ended a driver, by its log and by the record."""
    kind = UserError if code == UserError.exit_code else RoleError
    try:
        lines = (run_dir / DRIVER / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    begin = next((number for number, line in enumerate(lines) if line.startswith(ERROR_LINE)), None)
    if begin is not None:
        error = kind(lines[begin].removeprefix(ERROR_LINE))
        if lines[begin + 1 :]:
            error.add_note("\n".join(lines[begin + 1 :]))
        return error
    if code == KILLED:
        return RoleError(
            f"the driver of the job was killed, and all has ended with it; persia resume {run_dir} goes on from its "
            "newest checkpoint"
        )
    gone = f"the driver of {run_dir} has ended with exit code {code}; what started it has its log"
    return recorded_failure(run_dir) or RoleError(gone)


def fetch(run_dir: Path, reporter: Reporter) -> None:
    """Bring the copy of a record up to date, if the run is on other machines; report if that is not possible."""
    if is_submitted(run_dir):
        try:
            job_of(run_dir).fetch()
        except PersiaError as error:
            reporter.labelled("note", f"{one_line(error)}; here is what was copied before")


def plan_of(run_dir: Path) -> JobPlan:
    """Return the plan of a job from the record of its coordinator, which lacks some facts of the data."""
    run, job = read_run(run_dir / CONFIG), read_job(run_dir / JOB)
    # This machine may not reach the store of the checkpoints, so no command looks there.
    run = run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update={"path": None})})
    facts = DatasetFacts(job.train_rows, job.eval_rows, 0, (), 0, "")
    return JobPlan(run, facts, job, all_replicas(run), embedding_layout(run))


def _how_to_continue(run_dir: Path) -> str:
    """Return as text how to continue a job that was ended early, by its record."""
    with understanding(run_dir):
        saved = [event["path"] for event in read_journal(run_dir / EVENTS) if event["event"] == "saved"]
    newest = saved[-1] if saved else _first_checkpoint(run_dir)
    if newest is None:
        return f"nothing was saved; {run_dir} keeps the metrics"
    return f"the model is saved in {newest}; persia resume {run_dir} goes on from there"


def _first_checkpoint(run_dir: Path) -> str | None:
    """Return the run's own checkpoint with which its last start began; None if that is not sure."""
    with suppress(PersiaError):
        # Those that a command runs here may have begun with a checkpoint of another run.
        return read_job(run_dir / JOB).load if read_run(run_dir / CONFIG).cluster.is_spread else None
    return None

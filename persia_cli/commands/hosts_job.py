"""A job on machines that ssh reaches, on the screen."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import typer

from persia_cli.commands.end_by_follower import end_by_follower
from persia_cli.commands.endings import INTERRUPTED
from persia_cli.commands.followed import OverdueError, going_on, plan_of, show_beginning, to_its_end
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import err, labelled, say
from persia_cli.config.schema import Run
from persia_cli.engines.hosts.begin import begun, found, gone_on, run_of
from persia_cli.engines.hosts.follower import follower_of, note_end, note_follower
from persia_cli.engines.hosts.job import FIRST, HostsJob
from persia_cli.engines.hosts.rollback import run_with_rollback
from persia_cli.engines.resumed import locked
from persia_cli.engines.signals import JobSignals, PreemptedNow, handling
from persia_cli.errors import KilledError, PersiaError, PreemptedError, RoleError, UserError, exit_code_of, one_line

Begin = Callable[[Run, Path, Callable[[str], None], Callable[[str], None]], AbstractContextManager[HostsJob]]


class LeftAloneError(BaseException):
    """The terminal is gone; the job goes on without it."""


class GivenUpError(BaseException):
    """The terminal is gone while a job was being started; what had begun is stopped."""


def train_on_hosts(run: Run, run_dir: Path) -> None:
    """Start a job and follow it to its end."""
    _run(begun, run, run_dir)


def resume_on_hosts(run: Run, run_dir: Path) -> None:
    """Start the job of a run again, from its newest checkpoint, and follow it to its end."""
    _run(gone_on, run, run_dir)


def take_up_on_hosts(run: Run, run_dir: Path) -> None:
    """Go on, on other machines, with a run whose record is at a URI, and follow it to its end."""
    _run(partial(begun, number=2), run, run_dir)


def attach_to(run_dir: Path) -> None:
    """Follow a job that was started before to its end."""

    @contextmanager
    def attached() -> Iterator[HostsJob]:
        with found(run_dir, _note) as job, locked(run_dir):
            note_follower(run_dir)
            yield job

    with _noted(run_dir), _signals(run_dir) as signals:
        _follow_with_rollback(attached(), run_of(run_dir), run_dir, signals)


def _run(begin: Begin, run: Run, run_dir: Path) -> None:
    show_beginning(run, run_dir)
    with _noted(run_dir), _signals(run_dir) as signals:
        _follow_with_rollback(_given_up(begin(run, run_dir, _note, _starting)), run, run_dir, signals)


def _follow_with_rollback(job: AbstractContextManager[HostsJob], run: Run, run_dir: Path, signals: JobSignals) -> None:
    def follow(begun_job: AbstractContextManager[HostsJob]) -> None:
        with begun_job as job:
            _follow(job, signals)

    def go_on(run: Run) -> None:
        follow(_given_up(gone_on(run, run_dir, _note, _starting)))

    run_with_rollback(partial(follow, job), go_on, run, run_dir, _note)


@contextmanager
def _given_up(begun_job: AbstractContextManager[HostsJob]) -> Iterator[HostsJob]:
    """Yield a job once it has started; raises GivenUpError if the terminal ends before, which has stopped the start."""
    with ExitStack() as stack:
        try:
            job = stack.enter_context(begun_job)
        except BaseException as error:
            if _is_left_alone(error):
                raise GivenUpError from None
            raise
        yield job


def stop_job(run_dir: Path, at_once: bool) -> None:
    """End a job that was started before; unless `at_once`, its model is saved first."""
    with _ended_in_words(run_dir):
        follower = follower_of(run_dir)
        if follower is not None and follower.lives_here and end_by_follower(run_dir, follower, at_once):
            return
        with found(run_dir, _note) as job:
            _end(job, at_once)


def _end(job: HostsJob, at_once: bool) -> None:
    job.keep_trying()
    if not job.running:
        job.stop()
        raise UserError(f"the job of {job.run_dir} has ended; its log says how: persia logs {job.run_dir} {FIRST}")
    if at_once:
        if left := job.stop(at_once=True):
            raise _may_run(job, left)
        raise KeyboardInterrupt
    job.signal("SIGUSR1", [FIRST])
    limit_s = job.run.checkpoint.grace_s + job.run.cluster.stop_timeout_s
    job.wait([FIRST], limit_s)
    job.stop()
    job.check()
    job.result()


def _may_run(job: HostsJob, left: Sequence[str]) -> RoleError:
    again = f"persia stop {job.run_dir} --now tries again"
    return RoleError(f"{len(left)} of {len(job.placement)} replicas may still run; {again}")


def fetch_logs(run_dir: Path) -> None:
    """Bring the copy of a job's record and logs up to date, and say from which machines that was not possible.

    Another command that follows the job does so all the time.
    """
    try:
        with found(run_dir, _note) as job:
            missing = job.missing
    except PersiaError as error:
        _note(f"{one_line(error)}; here is what was copied before")
        return
    if missing:
        _note(f"from {', '.join(missing)} here is what was copied before")


def _follow(job: HostsJob, signals: JobSignals) -> None:
    """Show a job to its end; a signal has it saved and ended, Ctrl-C stopped, the terminal's end left alone."""
    machines = {host.ssh: host for host in job.placement.values()}
    for number, name in enumerate(machines):
        there = [replica.name for replica, host in job.placement.items() if host.ssh == name]
        labelled(err(), "" if number else "hosts", f"{name}: {', '.join(there)}")
    try:
        signals.trains = True
        result = to_its_end(job, signals)
    except KilledError as death:
        _stop(job)
        if signals.name:
            # The model was not saved, and nobody wants the job to go on here.
            raise RoleError(str(death)) from death
        raise
    except BaseException as error:
        if _is_left_alone(error):
            raise LeftAloneError from None
        if isinstance(error, (KeyboardInterrupt, PreemptedNow, OverdueError)) or not job.running:
            left = _stop(job)
            if left and isinstance(error, (KeyboardInterrupt, PreemptedNow)):
                raise _may_run(job, left) from error
        else:
            # What has failed is here: a machine is out of reach, the disk is full, nobody reads what is printed.
            error.add_note(f"The job goes on: persia attach {job.run_dir} follows it, persia stop ends it.")
        raise
    finally:
        signals.trains = False
    job.stop()
    show_results(plan_of(job.run_dir), result, [])


def _stop(job: HostsJob) -> list[str]:
    """Do what `HostsJob.stop` does; an interrupt meanwhile has the rest killed."""
    try:
        return job.stop()
    except KeyboardInterrupt:
        job.stop(at_once=True)
        raise


def _is_left_alone(error: BaseException | None) -> bool:
    """Return whether an error came while the end of the terminal was being dealt with: nothing can be shown then."""
    while error is not None and not isinstance(error, LeftAloneError):
        error = error.__context__
    return error is not None


@contextmanager
def _signals(run_dir: Path) -> Iterator[JobSignals]:
    """Handle signals as JobSignals does, but leave the job alone when the terminal ends; say how the command ends."""
    signals = JobSignals()
    with _ended_in_words(run_dir), signals.handled(), _left_alone():
        yield signals


@contextmanager
def _noted(run_dir: Path) -> Iterator[None]:
    """Note in the run directory how this command ends, for the one that has told it to end."""
    try:
        yield
    except BaseException as error:
        note_end(run_dir, exit_code_of(error))
        raise
    note_end(run_dir, 0)


@contextmanager
def _ended_in_words(run_dir: Path) -> Iterator[None]:
    """Say what goes on with a job whose end is not its own, and raise the exit code."""
    try:
        yield
    except LeftAloneError:
        with suppress(OSError):
            say(err(), f"the terminal is gone, and the job goes on: persia attach {run_dir}")
        raise typer.Exit(INTERRUPTED) from None
    except GivenUpError:
        with suppress(OSError):
            given_up = "the terminal is gone, so the start is given up, and what had begun is stopped"
            say(err(), f"{given_up}; {going_on(run_dir)}")
        raise typer.Exit(INTERRUPTED) from None
    except (PreemptedError, PreemptedNow) as ended:
        say(err(), f"{ended}: everything is stopped; {going_on(run_dir)}")
        raise typer.Exit(PreemptedError.exit_code) from None
    except KeyboardInterrupt:
        say(err(), f"interrupted; everything is stopped; {going_on(run_dir)}")
        raise typer.Exit(INTERRUPTED) from None


def _left_alone() -> AbstractContextManager[None]:
    """Raise LeftAloneError on SIGHUP, unless it is ignored."""

    def leave(number: int) -> None:
        raise LeftAloneError

    return handling((signal.SIGHUP,), leave)


def _note(text: str) -> None:
    with suppress(OSError):  # without a terminal, what is being ended has to be ended all the same
        labelled(err(), "note", text)


def _starting(text: str) -> None:
    labelled(err(), "starting", text)

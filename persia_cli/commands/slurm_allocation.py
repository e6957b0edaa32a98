"""A job on the machines that Slurm has given to it, from within them: by its script, or by a command there."""

import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from persia_cli.commands.endings import INTERRUPTED
from persia_cli.commands.followed import going_on, plan_of, show_beginning, to_its_end
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import err, labelled, say
from persia_cli.config.schema import Run
from persia_cli.control.restarts import RestartPolicy
from persia_cli.engines.job import JobResult, recorded_end
from persia_cli.engines.signals import ENDING_SIGNALS, JobSignals, PreemptedNow
from persia_cli.engines.slurm.allocation import Allocation, allocation_of
from persia_cli.engines.slurm.job import AllocatedJob
from persia_cli.engines.slurm.programs import requeue
from persia_cli.engines.slurm.turns import got_further, may_requeue, was_refused
from persia_cli.errors import PersiaError, PreemptedError, RoleError, UserError
from persia_cli.wire.secret import JobKeys, new_keys

WHOLE = "the job"
"""The name under which the job as a whole has its restarts counted."""
TIME_IS_OVER = "SIGUSR1"
"""What Slurm sends before the end of the job's time."""


def train_in_allocation(run: Run, run_dir: Path, requeues: bool) -> None:
    """Train on the machines of the job that this process is in, or go on with what is in the run directory.

    With `requeues` the job is this process's own, and is queued again when its time is over or machines are lost.
    """
    show_beginning(run, run_dir)
    allocation, signals = allocation_of(os.environ), JobSignals()
    try:
        with signals.handled(), _signals_let_in():
            result = _with_restarts(run, run_dir, allocation, signals, requeues)
    except (PreemptedError, PreemptedNow) as ended:
        if requeues and signals.name == TIME_IS_OVER:
            further = got_further(run_dir)
            if further or may_requeue(run, run_dir):
                why = f"{ended}: the job's time is nearly over; {going_on(run_dir)}"
                _queue_again(allocation, run_dir, why, counted=not further)
        say(err(), f"{ended}: everything is stopped; {going_on(run_dir)}")
        sys.exit(PreemptedError.exit_code)
    except KeyboardInterrupt:
        say(err(), f"interrupted; everything is stopped; {going_on(run_dir)}")
        sys.exit(INTERRUPTED)
    if result is not None:
        show_results(plan_of(run_dir), result, [])


@contextmanager
def _signals_let_in() -> Iterator[None]:
    """Let the signals that end a job come, and those that have waited, which `persia_cli.__main__` blocks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)  # may raise what the handler of one raises
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _with_restarts(
    run: Run, run_dir: Path, allocation: Allocation, signals: JobSignals, requeues: bool
) -> JobResult | None:
    """Run a job to its end, again from its newest checkpoint after each failure that is not the user's.

    Failures count, however far apart, until the model is saved at a later step. Returns None if it had ended before.
    """
    keys, restarts = new_keys(), RestartPolicy(run.recovery.max_restarts, math.inf)
    got_further(run_dir)  # what an earlier turn has saved is not this one's
    while True:
        try:
            return _to_its_end(run, run_dir, allocation, keys, signals)
        except (UserError, PreemptedError):
            raise
        except PersiaError as failure:
            lost = allocation.lost(_say)
            if lost and requeues and may_requeue(run, run_dir):
                _queue_again(allocation, run_dir, f"{failure}; lost: {', '.join(sorted(lost))}", counted=True)
            if got_further(run_dir):
                restarts = RestartPolicy(run.recovery.max_restarts, math.inf)
            wait_s = restarts.next(WHOLE, time.monotonic())
            if wait_s is None:
                if restarts.max_restarts:
                    failure.add_note(
                        "The job was started anew as often as recovery.max_restarts allows, and did not get further."
                    )
                raise
            pause = f" in {wait_s:g} s" if wait_s else ""
            labelled(err(), "again", f"{failure}; the job begins again{pause}, from its newest checkpoint")
            time.sleep(wait_s)


def _to_its_end(
    run: Run, run_dir: Path, allocation: Allocation, keys: JobKeys, signals: JobSignals
) -> JobResult | None:
    job = AllocatedJob(run, run_dir, allocation, keys, _say)
    try:
        job.start()
        if not job.has_begun:
            say(err(), job.last_words)
            return None
        with recorded_end(run_dir, signals):
            try:
                signals.trains = True
                return to_its_end(job, signals)
            finally:
                signals.trains = False
                job.stop()
    finally:
        job.stop()


def _say(text: str) -> None:
    labelled(err(), "slurm", text)


def _queue_again(allocation: Allocation, run_dir: Path, why: str, counted: bool) -> None:
    """Have Slurm queue the job again, which ends this process; returns if Slurm refuses that."""
    try:
        requeue(allocation.job)
    except RoleError as refused:
        if counted:
            was_refused(run_dir)
        _say(f"the job is not queued again: {refused}")
        return
    say(err(), f"{why}; the job is queued again")
    sys.exit(PreemptedError.exit_code)

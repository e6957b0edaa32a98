"""A job on the machines that Slurm has given to it, from within them: by its script, or by a command there."""

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from persia_cli.commands.followed import going_on, plan_of, show_beginning, to_its_end
from persia_cli.commands.job import INTERRUPTED
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import err, labelled, say
from persia_cli.config.schema import Run
from persia_cli.control.restarts import RestartPolicy
from persia_cli.disk import write_whole
from persia_cli.engines.slurm.allocation import Allocation, allocation_of
from persia_cli.engines.slurm.job import AllocatedJob
from persia_cli.engines.slurm.machines import settings_of
from persia_cli.engines.slurm.programs import lost_among, requeue
from persia_cli.engines.slurm.queued import REQUEUES
from persia_cli.errors import PersiaError, PreemptedError, UserError
from persia_cli.launch.job import SUBMITTED, JobResult, recorded_end
from persia_cli.launch.signals import JobSignals, PreemptedNow
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.wire.keys import JobKeys, new_keys

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
        with signals.handled():
            result = _with_restarts(run, run_dir, allocation, signals, requeues)
    except (PreemptedError, PreemptedNow) as ended:
        if requeues and signals.name == TIME_IS_OVER and (_has_saved(run_dir) or may_requeue(run, run_dir)):
            _queue_again(allocation, f"{ended}: the job's time is nearly over; {going_on(run_dir)}")
        say(err(), f"{ended}: everything is stopped; {going_on(run_dir)}")
        sys.exit(PreemptedError.exit_code)
    except KeyboardInterrupt:
        say(err(), f"interrupted; everything is stopped; {going_on(run_dir)}")
        sys.exit(INTERRUPTED)
    if result is not None:
        show_results(plan_of(run_dir), result, [])


def _with_restarts(
    run: Run, run_dir: Path, allocation: Allocation, signals: JobSignals, requeues: bool
) -> JobResult | None:
    """Run a job to its end, again from its newest checkpoint after each failure that is not the user's.

    Returns None if it had ended before.
    """
    keys, policy = new_keys(), RestartPolicy(run.recovery.max_restarts, run.recovery.window_s)
    while True:
        try:
            return _to_its_end(run, run_dir, allocation, keys, signals)
        except (UserError, PreemptedError):
            raise
        except PersiaError as failure:
            lost = lost_among(allocation.nodes)
            if lost and requeues and may_requeue(run, run_dir):
                _queue_again(allocation, f"{failure}; lost: {', '.join(lost)}")
            wait_s = policy.next(WHOLE, time.monotonic())
            if wait_s is None:
                if policy.max_restarts:
                    failure.add_note("The job was started anew as often as recovery.max_restarts allows.")
                raise
            pause = f" in {wait_s:g} s" if wait_s else ""
            labelled(err(), "again", f"{failure}; the job begins again{pause}, from its newest checkpoint")
            time.sleep(wait_s)


def _to_its_end(
    run: Run, run_dir: Path, allocation: Allocation, keys: JobKeys, signals: JobSignals
) -> JobResult | None:
    job = AllocatedJob(run, run_dir, allocation, keys, lambda text: labelled(err(), "slurm", text))
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


def _has_saved(run_dir: Path) -> bool:
    """Return whether the last start of a run has saved its model, so that the next one goes on from there."""
    return any(event["event"] == "saved" for event in read_journal(run_dir / EVENTS))


def may_requeue(run: Run, run_dir: Path) -> bool:
    """Count one more time that a job is queued again without having got further; False if that is one too many."""
    file = run_dir / SUBMITTED / REQUEUES
    before = int(file.read_text(encoding="ascii")) if file.exists() else 0
    if before >= settings_of(run).max_requeues:
        return False
    write_whole(file, f"{before + 1}\n")
    return True


def _queue_again(allocation: Allocation, why: str) -> NoReturn:
    """Have Slurm queue the job again, which ends this process."""
    requeue(allocation.job)
    say(err(), f"{why}; the job is queued again")
    sys.exit(PreemptedError.exit_code)

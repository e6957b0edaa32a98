"""A job that Slurm has queued, on the screen; it goes on when the command that shows it ends."""

import sys
import time
from contextlib import suppress
from pathlib import Path

from persia_cli.commands.endings import INTERRUPTED
from persia_cli.commands.followed import going_on, plan_of, show_beginning
from persia_cli.commands.progress import following
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import err, labelled, say
from persia_cli.config.schema import Run
from persia_cli.engines.job import COORDINATOR_ADDRESS, JOB, SUBMITTED, result_of
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.engines.slurm.programs import (
    PENDING,
    RUNNING,
    SUSPENDED,
    WAITING,
    State,
    cancel,
    signal_script,
    state_of,
)
from persia_cli.engines.slurm.queued import queue, require_job, require_well
from persia_cli.engines.slurm.script import LOG
from persia_cli.errors import PreemptedError, RoleError, UserError

POLL_S = 0.2
STATE_S = 3.0
"""Seconds between two questions to Slurm, which many jobs ask."""
LOST_S = 300.0
"""Seconds for which Slurm may not answer before the command ends; the job goes on."""
ENDING_S = 60.0
"""Seconds for the end of a job that was told to end, besides those in which it is saved."""


def train_on_slurm(run: Run, run_dir: Path) -> None:
    """Give a job to Slurm, anew or to go on with what is in its run directory, and follow it to its end."""
    show_beginning(run, run_dir)
    job = queue(run, run_dir)
    labelled(err(), "slurm", f"job {job}; its script says what it does in {run_dir / SUBMITTED / LOG}")
    _follow(job, run_dir)


def attach_to_slurm(run_dir: Path) -> None:
    """Follow a job that Slurm was given before to its end."""
    _follow(require_job(run_dir), run_dir)


def stop_on_slurm(run_dir: Path, at_once: bool) -> None:
    """End a job that Slurm was given; unless `at_once`, its model is saved first."""
    job = require_job(run_dir)
    state = state_of(job)
    if state.is_over:
        raise UserError(f"the job of {run_dir}, {job} of Slurm, has ended; {run_dir / SUBMITTED / LOG} says how")
    if state.name in WAITING:
        cancel(job)
        say(err(), f"the job {job} of Slurm did not run, and has left the queue; {going_on(run_dir)}")
        return
    if state.name in SUSPENDED and not at_once:
        raise UserError(
            f"the job {job} of Slurm is {state.name.lower()}, and cannot save its model: have it go on (scontrol "
            "resume), or end it with --now"
        )
    if state.name in SUSPENDED:
        cancel(job)
    elif state.name == RUNNING:
        signal_script(job, "INT" if at_once else "TERM")
    # Only the machines know how long a save may take; if it takes longer than that, they end the job.
    limit_s = plan_of(run_dir).run.checkpoint.grace_s + ENDING_S if _has_begun(run_dir) else ENDING_S
    begin = time.monotonic()
    while not (state := state_of(job)).is_over:
        if time.monotonic() - begin > limit_s:
            cancel(job)
            raise RoleError(f"the job {job} of Slurm has not ended within {limit_s:g} s, and is cancelled")
        time.sleep(STATE_S)
    say(err(), f"everything is stopped; {going_on(run_dir)}")
    sys.exit(INTERRUPTED if at_once else PreemptedError.exit_code)


def _follow(job: str, run_dir: Path) -> None:
    """Show a job to its end, and how it ended; whoever ends this command leaves the job alone."""
    try:
        with terminating_interrupts():
            state = _to_its_end(job, run_dir)
    except KeyboardInterrupt:
        with suppress(OSError):
            say(err(), f"the job goes on: persia attach {run_dir} follows it, persia stop {run_dir} ends it")
        sys.exit(INTERRUPTED)
    try:
        require_well(run_dir, job, state)
    except PreemptedError as ended:
        say(err(), f"{ended}: everything is stopped; {going_on(run_dir)}")
        sys.exit(ended.exit_code)
    if _has_begun(run_dir):
        show_results(plan_of(run_dir), result_of(run_dir), [])


def _to_its_end(job: str, run_dir: Path) -> State:
    watch, said = _Watch(job), ""
    while not (state := watch.state()).is_over:
        if state.name == RUNNING and (run_dir / COORDINATOR_ADDRESS).exists():
            _show(watch, run_dir)
            said = RUNNING.lower()
            continue
        words = f"waiting in the queue: {state.reason or 'its turn'}" if state.name == PENDING else state.name.lower()
        if words != said:
            labelled(err(), "slurm", words)
            said = words
        time.sleep(POLL_S)
    return state


def _show(watch: "_Watch", run_dir: Path) -> None:
    """Show the progress of one start of a job, until its coordinator has ended or its machines are gone."""
    plan = plan_of(run_dir)
    with following(err(), run_dir, plan.job, plan.run.train.batch_size) as follow:
        while (run_dir / COORDINATOR_ADDRESS).exists() and watch.state().name == RUNNING:
            follow()
            time.sleep(POLL_S)
        follow()


class _Watch:
    """Asks Slurm how a job does, now and then."""

    def __init__(self, job: str) -> None:
        self._job, self._state = job, State(PENDING)
        self._asked_s, self._answered_s = 0.0, time.monotonic()

    def state(self) -> State:
        """Return how the job did at the last question; raises RoleError if Slurm does not answer for long."""
        now = time.monotonic()
        if now - self._asked_s < STATE_S and self._asked_s:
            return self._state
        self._asked_s = now
        try:
            self._state, self._answered_s = state_of(self._job), now
        except RoleError as error:
            if now - self._answered_s > LOST_S:
                error.add_note(f"The job {self._job} of Slurm goes on.")
                raise
        return self._state


def _has_begun(run_dir: Path) -> bool:
    return (run_dir / JOB).exists()

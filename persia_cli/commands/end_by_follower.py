"""The end of a job by the command that follows it, which may just be taking the job back to a checkpoint."""

import signal
import time
from pathlib import Path

from persia_cli.commands.endings import INTERRUPTED
from persia_cli.engines.hosts.begin import run_of
from persia_cli.engines.hosts.follower import Follower, follower_of
from persia_cli.engines.job import recorded_failure
from persia_cli.errors import PreemptedError, RoleError, UserError

POLL_S = 0.1
ENDING_S = 60.0
"""Seconds for the end of the command, besides those in which the job is saved and its roles end."""
AGAIN_S = 5.0
"""Seconds after which one that is to save nothing is interrupted again, and kills what runs."""


def end_by_follower(run_dir: Path, follower: Follower, at_once: bool) -> bool:
    """Have the command that follows a job save its model and end it, or end it `at_once`.

    Returns False if that was killed, and the job perhaps not ended; True if the job was done. Raises PreemptedError or
    KeyboardInterrupt if it has ended early, UserError or RoleError if it has failed.
    """
    run = run_of(run_dir)
    _tell(follower, signal.SIGINT if at_once else signal.SIGUSR1, run_dir)
    limit_s = ENDING_S + run.checkpoint.grace_s + 4 * run.cluster.stop_timeout_s
    begin, told_again = time.monotonic(), not at_once
    while follower.process.lives:
        seconds = time.monotonic() - begin
        if not told_again and seconds > AGAIN_S:
            _tell(follower, signal.SIGINT, run_dir)
            told_again = True
        if seconds > limit_s:
            pid = follower.process.pid
            raise RoleError(f"process {pid}, which follows the job of {run_dir}, has not ended it within {limit_s:g} s")
        time.sleep(POLL_S)
    known = follower_of(run_dir)
    if known is None or known.process != follower.process:  # nothing has begun, so its note was taken back
        return _ended(INTERRUPTED if at_once else PreemptedError.exit_code, run_dir)
    return _ended(known.code, run_dir)


def _tell(follower: Follower, number: signal.Signals, run_dir: Path) -> None:
    try:
        follower.process.send(number)
        follower.process.send(signal.SIGCONT)  # Ctrl-Z may have suspended it
    except PermissionError:
        whose = f"process {follower.process.pid}, which follows the job of {run_dir}, belongs to another user"
        raise UserError(f"{whose}; stop the job as that user") from None


def _ended(code: int | None, run_dir: Path) -> bool:
    """Return or raise what it means that the command has ended with an exit code, None if that is not known."""
    match code:
        case None:
            return False
        case 0:
            return True
        case PreemptedError.exit_code:
            raise PreemptedError("persia stop")
        case code if code == INTERRUPTED:
            raise KeyboardInterrupt
    failure = recorded_failure(run_dir)
    raise failure or RoleError(f"the command that follows the job of {run_dir} has failed, and says why")

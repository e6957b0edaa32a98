"""One replica as a process of its own: what `persia launch-role` does once its words are understood."""

import ctypes
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from persia_cli.config.record import read_run
from persia_cli.errors import ConfigError, RoleError
from persia_cli.kernels.memory import keep_freed_memory
from persia_cli.launch.job import CONFIG, COORDINATOR_ADDRESS, JOB, SIGNALLED, SWITCH_INTERVAL_S
from persia_cli.observe.logs import log_to_stderr
from persia_cli.plan.job import ROLES, Job
from persia_cli.roles.start import Stoppable, run_coordinator, run_role
from persia_cli.wire.sockets import Context

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, the process `parent`, dies; raises RoleError if it has.

    Linux, prctl(2): the signal is sent when the thread that started this process ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise RoleError(f"the launcher (process {parent}) has ended")


class StopSignal:
    """Lets the first SIGTERM or SIGINT end a role's loop, and the second the process; `number` is the one that came."""

    def __init__(self) -> None:
        self.number = 0

    def stops(self, stoppable: Stoppable) -> None:
        """Have the role stop when the signal comes."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)
            self.number = number
            stoppable.stop = True

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)


def run_process(
    role: str, index: int, coordinator: str, bind: str | None, advertise: str | None, run_dir: Path | None
) -> None:
    """Run one replica to the end of the job; the coordinator finds its run and job in `run_dir`.

    Raises SystemExit if a signal ended it before.
    """
    log_to_stderr(f"{role}-{index}")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory()
    context = Context()
    stop = StopSignal()
    try:
        if role == "coordinator":
            _coordinate(context, bind or coordinator, advertise, run_dir, stop)
        elif role in ROLES:
            run_role(context, role, index, coordinator, bind, advertise, on_start=stop.stops)
        else:
            raise ConfigError(f"there is no role {role!r}; there is {', '.join(ROLES)}")
    finally:
        context.destroy(linger=0)
    if stop.number:
        log.info("stopped by %s", signal.Signals(stop.number).name)
        sys.exit(SIGNALLED + stop.number)


def _coordinate(context: Context, bind: str, advertise: str | None, run_dir: Path | None, stop: StopSignal) -> None:
    if run_dir is None:
        raise ConfigError("the coordinator needs --run-dir, the folder of the run it holds together")
    run = read_run(run_dir / CONFIG)
    job = Job.from_json((run_dir / JOB).read_bytes())

    word = run_dir / COORDINATOR_ADDRESS

    def on_start(coordinator: Stoppable, address: str) -> None:
        stop.stops(coordinator)
        print(f"listening at {address}", file=sys.stderr, flush=True)
        _leave_word(word, address)

    try:
        run_coordinator(context, bind, run, job, advertise, on_start)
    finally:
        word.unlink(missing_ok=True)


def _leave_word(path: Path, address: str) -> None:
    """Write where the coordinator listens, whole or not at all."""
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(address + "\n", encoding="utf-8")
    draft.rename(path)

"""One replica as a process of its own: what `persia launch-role` does once its words are understood."""

import ctypes
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from persia_cli.config.record import read_run
from persia_cli.errors import ConfigError, RoleError
from persia_cli.launch.job import CONFIG, COORDINATOR_ADDRESS, JOB, SWITCH_INTERVAL_S
from persia_cli.observe.logs import log_to_stderr
from persia_cli.plan.job import ROLES, Job
from persia_cli.roles.start import Stoppable, run_coordinator, run_role
from persia_cli.wire.sockets import Context

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, the process `parent`, dies; raises RoleError if it has.

    Linux, prctl(2): the signal is sent when the thread that started this process ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise RoleError(f"the launcher (process {parent}) has ended")


def stop_on_signal(stoppable: Stoppable) -> None:
    """Let the first SIGTERM or SIGINT end the role's loop, and the second the process."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stoppable.stop = True

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)


def run_process(
    role: str, index: int, coordinator: str, bind: str | None, advertise: str | None, run_dir: Path | None
) -> None:
    """Run one replica to the end of the job; the coordinator finds its run and job in `run_dir`."""
    log_to_stderr(f"{role}-{index}")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    context = Context()
    try:
        if role == "coordinator":
            _coordinate(context, bind or coordinator, advertise, run_dir)
        elif role in ROLES:
            run_role(context, role, index, coordinator, bind, advertise, on_start=stop_on_signal)
        else:
            raise ConfigError(f"there is no role {role!r}; there is {', '.join(ROLES)}")
    finally:
        context.destroy(linger=0)


def _coordinate(context: Context, bind: str, advertise: str | None, run_dir: Path | None) -> None:
    if run_dir is None:
        raise ConfigError("the coordinator needs --run-dir, the folder of the run it holds together")
    run = read_run(run_dir / CONFIG)
    job = Job.from_json((run_dir / JOB).read_bytes())

    word = run_dir / COORDINATOR_ADDRESS

    def on_start(coordinator: Stoppable, address: str) -> None:
        stop_on_signal(coordinator)
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

"""Roles that outlive the command that starts them, and what they leave in a folder of their machine.

Of each replica there are a log, its supervisor's process and, when that has ended, its exit code. Of one that was told
to end before it was started there is a note, and it is not started any more.
"""

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from persia_cli.disk import write_whole, writing
from persia_cli.engines.handed_over import descriptors
from persia_cli.engines.processes import python_module
from persia_cli.engines.role_options import RoleOptions
from persia_cli.engines.running import RunningProcess, process_of
from persia_cli.errors import RoleError, exit_code_of

LOG, PROCESS, END, CANCELLED = ".log", ".process", ".end", ".cancelled"
EXIT_CODE_PLACEHOLDER = " " * 4 + "\n"
"""What the file for an exit code holds until then: a supervisor may have to leave it on a disk that is full by then."""
KILLED = 128 + signal.SIGKILL
"""Exit code of a supervisor that could not leave one."""
UNREADABLE = 1


def start_in_background(options: RoleOptions, folder: Path) -> None:
    """Start the supervisor of a replica, which goes on when this process ends.

    Raises DiskError, and RoleError if the replica has been told to end meanwhile: who wants that knows of no process
    until it is noted.
    """
    name = options.name
    with alone_in(folder):
        if (folder / f"{name}{CANCELLED}").exists():
            raise RoleError(f"{name} was told to end before it was started")
        write_whole(folder / f"{name}{END}", EXIT_CODE_PLACEHOLDER)
        process = _started(options, folder, name)
        try:
            note_process(folder, name, process.pid)
        except BaseException:
            process.kill()  # no command could find it
            process.wait()
            raise


def _started(options: RoleOptions, folder: Path, name: str) -> "subprocess.Popen[bytes]":
    words = ["launch-role", *options.words(), "--supervise", "--end-file", str((folder / f"{name}{END}").absolute())]
    with writing(folder / f"{name}{LOG}"), (folder / f"{name}{LOG}").open("ab") as log:
        return subprocess.Popen(
            [*python_module("persia_cli"), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=descriptors([options.key_file]),
        )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a folder if it is not there, and keep other processes that ask for it away; raises DiskError."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def note_process(folder: Path, name: str, pid: int, **known: str) -> None:
    """Note which process is the one of this name, and what else is known of it; raises DiskError."""
    process = process_of(pid)
    began = process.started if process is not None else 0
    write_whole(folder / f"{name}{PROCESS}", json.dumps({"pid": pid, "began": began, **known}) + "\n")


@contextmanager
def recorded_exit(file: Path) -> Iterator[None]:
    """Write the exit code that the block gives this process to a file."""
    try:
        yield
    except BaseException as error:
        _leave(exit_code_of(error), file)
        raise
    _leave(0, file)


def _leave(code: int, file: Path) -> None:
    """Write an exit code to a file, in the room that it has there, if it has some."""
    if not file.exists():
        write_whole(file, f"{code}\n")
        return
    with writing(file), file.open("r+", encoding="ascii") as place:
        place.write(f"{code:<{len(EXIT_CODE_PLACEHOLDER) - 1}}\n")


def is_running(folder: Path, name: str) -> bool:
    """Return whether the supervisor of a replica runs."""
    process = _process(folder, name)
    return process is not None and process.lives


def exit_code(folder: Path, name: str) -> int:
    """Return the exit code of a supervisor that has ended."""
    try:
        left = (folder / f"{name}{END}").read_text(encoding="ascii")
        return int(left) if left != EXIT_CODE_PLACEHOLDER else KILLED
    except FileNotFoundError:
        return KILLED
    except (OSError, ValueError):
        return UNREADABLE


def send_signal(folder: Path, name: str, number: int) -> bool:
    """Send a signal to the supervisor of a replica, if it runs; SIGKILL ends its replica too.

    Returns False if none was started.
    """
    process = _process(folder, name)
    if process is None:
        return False
    process.send(signal.Signals(number))
    return True


def cancel(folder: Path, name: str) -> None:
    """Keep a replica from being started; the caller is alone in the folder. Raises DiskError."""
    write_whole(folder / f"{name}{CANCELLED}", "")


def replicas_in(folder: Path) -> list[str]:
    """Return the names of the replicas that were started with this folder."""
    return sorted(path.stem for path in folder.glob(f"*{PROCESS}"))


def cancelled_in(folder: Path) -> list[str]:
    """Return the names of the replicas that were told to end before they were started."""
    return sorted(path.stem for path in folder.glob(f"*{CANCELLED}"))


def _process(folder: Path, name: str) -> RunningProcess | None:
    """Return the process of a supervisor, which may have ended; None if nothing is known of it."""
    try:
        known = json.loads((folder / f"{name}{PROCESS}").read_text(encoding="ascii"))
        return RunningProcess(int(known["pid"]), int(known["began"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None

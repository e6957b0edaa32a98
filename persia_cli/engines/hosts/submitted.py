"""A job with `cluster=hosts` as the machine sees it that has submitted it: all that happens is on the first host.

The run directory here has the name of the one there, and gets a copy of the record when a command asks for it.
"""

import json
import secrets
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from persia_cli.config.record import read_run, write_run
from persia_cli.config.schema import HostsCluster, Run
from persia_cli.disk import write_whole, writing
from persia_cli.engines.child import LOST, failure_in
from persia_cli.engines.driver_input import configuration, input_text, keys_of_job
from persia_cli.engines.driver_process import ELSEWHERE, is_submitted
from persia_cli.engines.engine import settings_of
from persia_cli.engines.hosts.placement import first_of
from persia_cli.engines.hosts.ssh import failure, in_folder, run_on, ssh_arguments, ssh_command
from persia_cli.engines.job import COORDINATOR_ADDRESS, SECRET_FILE, anchored
from persia_cli.errors import RoleError, UserError
from persia_cli.loggers.logger import WANDB
from persia_cli.observe.history import CONFIG
from persia_cli.store.checkpoints.manifest import CHECKPOINTS

START_S, ANSWER_S = 600.0, 60.0
AGAIN_S = 3.0
"""Seconds until a connection that was cut off is tried again."""
POLL_S = 0.1
LEFT_THERE = (CHECKPOINTS, COORDINATOR_ADDRESS, SECRET_FILE, WANDB)


def submit(run: Run, run_dir: Path, overrides: Sequence[str]) -> None:
    """Start the driver of a job on the first host; `words` are those of `persia drive`.

    Raises UserError if that is refused; the run directory is then unchanged.
    """
    hosts, first = settings_of(run, HostsCluster), first_of(run)
    given = input_text(keys_of_job(), configuration(run))
    is_new = not is_submitted(run_dir)
    folder = f"{run_dir.absolute().name}-{secrets.token_hex(3)}" if is_new else _folder_in(run_dir)
    if not is_new and (then := first_of(read_run(run_dir / CONFIG)).ssh) != first.ssh:
        raise UserError(f"the record of the run is on {then}, so coordinator-0 has to run there and not on {first.ssh}")
    try:
        run_on(hosts, first, ["drive", "--background", "--run-dir", folder, *overrides], given, START_S, "the job")
    except UserError as refused:
        raise type(refused)(str(refused).replace(folder, str(run_dir))) from None
    with writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    write_run(anchored(run), run_dir / CONFIG)
    write_whole(run_dir / ELSEWHERE, json.dumps({"folder": folder}) + "\n")


def _folder_in(run_dir: Path) -> str:
    try:
        return str(json.loads((run_dir / ELSEWHERE).read_text(encoding="utf-8"))["folder"])
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{run_dir / ELSEWHERE} is damaged: it does not name the folder on the first host") from None


class SubmittedJob:
    """The job of a run directory, whose driver is on the first host."""

    def __init__(self, run_dir: Path, flags: Sequence[str] = ()) -> None:
        """`flags` are those of `persia` itself, for the command that shows the job."""
        self._run_dir, self._folder, self._flags = run_dir, _folder_in(run_dir), flags
        run = read_run(run_dir / CONFIG)
        self._hosts, self._first = settings_of(run, HostsCluster), first_of(run)
        self._stops: list[subprocess.Popen[bytes]] = []

    def show(self, poll: Callable[[], None], say: Callable[[str], None]) -> None:
        """Show the job until it has ended, calling `poll` again and again; ssh is tried again for a while.

        Raises RoleError if ssh does not reach the machine for five minutes (`lost_s`).
        """
        lost_s: float | None = None
        while True:
            terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
            command = self._command([*self._flags, "attach", "--progress", self._folder], terminal)
            process = subprocess.Popen(
                command, stdin=None if terminal else subprocess.DEVNULL, start_new_session=not terminal
            )
            try:
                begin = time.monotonic()
                while (code := process.poll()) is None:
                    poll()
                    time.sleep(POLL_S)
            finally:
                process.terminate()
                process.wait()
            if code != LOST and code >= 0:
                return
            now = time.monotonic()
            if lost_s is None or now - begin > self._hosts.lost_s:
                lost_s = now
                say(f"{self._first.ssh} is not reached by ssh; the job may go on, and ssh is tried again")
            if now - lost_s > self._hosts.lost_s:
                raise RoleError(
                    f"{self._first.ssh} has not been reached by ssh for {self._hosts.lost_s:g} s; the job may go on: "
                    f"persia attach {self._run_dir} shows it"
                )
            until = now + AGAIN_S
            while time.monotonic() < until:
                poll()
                time.sleep(POLL_S)

    def stop(self, at_once: bool) -> None:
        """Have the job saved and ended, or ended `at_once`; this does not wait for it."""
        quiet = subprocess.DEVNULL
        command = self._stop_command(at_once)
        self._stops.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True))

    def stop_and_wait(self, at_once: bool) -> None:
        """Do the same, and wait for the end; raises UserError if it had ended before."""
        ended = subprocess.run(self._stop_command(at_once), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if ended.returncode in (LOST, UserError.exit_code) or ended.returncode < 0:
            error = failure(self._hosts, self._first, ended, "persia stop")
            raise type(error)(str(error).replace(self._folder, str(self._run_dir)))

    def _stop_command(self, at_once: bool) -> list[str]:
        return self._command(["stop", *(["--now"] if at_once else []), self._folder])

    def _command(self, arguments: Sequence[str], terminal: bool = False) -> list[str]:
        *_, shell = ssh_command(self._hosts, self._first, arguments)
        return [*ssh_arguments(self._hosts, self._first, terminal), shell]

    def fetch(self) -> None:
        """Copy the record and the logs here; raises RoleError if the machine is not reached."""
        leave = " ".join(f"--exclude=./{name}" for name in LEFT_THERE)
        shell = f"{in_folder(self._hosts)} && tar -C {shlex.quote(self._folder)} {leave} -cf - ."
        command = [*ssh_arguments(self._hosts, self._first), shell]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            with (
                suppress(tarfile.ReadError),
                writing(self._run_dir),
                tarfile.open(fileobj=process.stdout, mode="r|") as record,
            ):
                record.extractall(self._run_dir, filter="data")
            process.stdout.read()
            errors = process.stderr.read().decode(errors="replace")
        if process.returncode not in (0, 1):  # 1: a file has changed while it was read
            raise RoleError(f"{self._first.ssh}: the record is not copied: {failure_in(errors)}")

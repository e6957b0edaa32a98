"""One process per replica on this machine: start, watch, stop."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from persia_cli.errors import PersiaError, RoleError, UserError
from persia_cli.launch.interrupts import terminating_interrupts
from persia_cli.launch.job import (
    COORDINATOR_ADDRESS,
    SIGNALLED,
    JobResult,
    compile_kernels,
    prepare_run_dir,
    recorded_failure,
    result_of,
)
from persia_cli.plan.job import JobPlan, Replica
from persia_cli.wire.sockets import ipc_address, private_directory

POLL_S = 0.1
LOG_TAIL_LINES = 20
ERROR = "error: "
"""How the sentence begins that a replica ends with, in its log."""
SETTLE_S = 3.0
"""Seconds that the coordinator gets to record why a replica died before the launcher says so itself."""


def launch(plan: JobPlan, follow: Callable[[], None] = lambda: None) -> JobResult:
    """Run the job to its end, calling `follow()` from this thread about ten times a second.

    The first Ctrl-C (or SIGTERM) asks all replicas to stop and kills those that have not after
    `cluster.stop_timeout_s`; a second one kills at once; KeyboardInterrupt is raised again in the end. Raises the
    failure of the replica that failed first.
    """
    prepare_run_dir(plan)
    compile_kernels(plan.run_dir, follow)
    with terminating_interrupts(), private_directory() as sockets:
        processes = Processes(plan, sockets)
        try:
            processes.start()
            while processes.running:
                follow()
                time.sleep(POLL_S)
            processes.check()
        finally:
            processes.stop()
            follow()
    return result_of(plan.run_dir)


@dataclass(slots=True)
class Started:
    """A replica's process and its log."""

    replica: Replica
    process: subprocess.Popen[bytes]
    log: Path


class Processes:
    """The processes of one job. None of them outlives the launcher: each asks the kernel to be killed with it."""

    def __init__(
        self, plan: JobPlan, sockets: Path, advertised: Callable[[Replica], str | None] = lambda replica: None
    ) -> None:
        """`sockets` is where they listen; `advertised` the address others are told of a replica, if another one."""
        self._plan = plan
        self._sockets = sockets
        self._advertised = advertised
        self._started: list[Started] = []

    @property
    def address(self) -> str:
        """Where the coordinator listens, once started."""
        return (self._plan.run_dir / COORDINATOR_ADDRESS).read_text(encoding="utf-8").strip()

    def start(self) -> None:
        """Start the coordinator, then the others, each in a session of its own so that Ctrl-C reaches only us."""
        cluster = self._plan.run.cluster
        listen = "tcp://127.0.0.1:*" if cluster.transport == "tcp" else ipc_address(self._sockets, "coordinator-0")
        coordinator, *others = self._plan.replicas
        self._spawn(coordinator, listen)
        address = self._wait_for_address(cluster.start_timeout_s)
        for replica in others:
            self._spawn(replica, address)

    def _spawn(self, replica: Replica, coordinator: str) -> None:
        command = [sys.executable, "-m", "persia_cli", "launch-role", replica.role]
        command += ["--coordinator", coordinator, "--index", str(replica.index), "--parent", str(os.getpid())]
        if replica.role == "coordinator":
            command += ["--run-dir", str(self._plan.run_dir)]
        advertised = self._advertised(replica)
        if advertised is not None:
            command += ["--advertise", advertised]
        log = self._plan.run_dir / "roles" / f"{replica.name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._started.append(Started(replica, process, log))

    def _wait_for_address(self, limit_s: float) -> str:
        path = self._plan.run_dir / COORDINATOR_ADDRESS
        deadline = time.monotonic() + limit_s
        while not path.exists():
            self.check()
            if time.monotonic() > deadline:
                raise RoleError(
                    f"coordinator-0 has not started listening after {limit_s:g} s; see {self._started[0].log}"
                )
            time.sleep(0.02)
        return self.address

    @property
    def running(self) -> bool:
        """Whether the job goes on: the coordinator runs and no replica has failed."""
        codes = [started.process.poll() for started in self._started]
        return codes[0] is None and not any(codes)

    def check(self) -> None:
        """Raise what ended the job, if it was a failure."""
        ended = [started for started in self._started if started.process.poll()]
        if not ended:
            return
        for started in ended:
            # Ended from outside, so this is the cause; what other replicas say, if they noticed, is not.
            if started.process.returncode < 0 or started.process.returncode > SIGNALLED:
                raise self._death(started)
        deadline = time.monotonic() + SETTLE_S
        while self._started[0].process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        # A coordinator that failed for lack of another replica is the symptom, not the cause.
        first = next((s for s in ended if s.replica.role != "coordinator"), ended[0])
        raise recorded_failure(self._plan.run_dir) or self._death(first)

    def _death(self, started: Started) -> PersiaError:
        """Word the end of a replica by its own error, or by the last lines of its log if it died without a word."""
        code = started.process.returncode
        kind = UserError if code == UserError.exit_code else RoleError
        lines = started.log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
        if errors:
            return kind("\n".join(f"{started.replica.name}: {error}" for error in errors))
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        elif code > SIGNALLED:
            how = f"was stopped by {signal.Signals(code - SIGNALLED).name}"
        else:
            how = f"ended with exit code {code}"
        tail = "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:]) or "  (nothing)"
        return kind(f"{started.replica.name} {how}; the job is stopped. The end of {started.log}:\n{tail}")

    def stop(self) -> None:
        """End every process that still runs: asked first, killed after `cluster.stop_timeout_s`."""
        try:
            self._wait(self._plan.run.cluster.stop_timeout_s if self._ended_well else 0.0)
            self._signal(signal.SIGTERM)
            self._wait(self._plan.run.cluster.stop_timeout_s)
        finally:
            self._signal(signal.SIGKILL)
            for started in self._started:
                started.process.wait()

    @property
    def _ended_well(self) -> bool:
        return bool(self._started) and self._started[0].process.poll() == 0

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(s.process.poll() is None for s in self._started) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _signal(self, number: signal.Signals) -> None:
        for started in self._started:
            if started.process.poll() is None:
                started.process.send_signal(number)

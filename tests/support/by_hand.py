"""A job whose replicas are started one by one with the commands that a dry run prints."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

from persia_cli.engines.job import JobResult, result_of
from persia_cli.plan.job import JobPlan

LIMIT_S = 120.0


def run_by_hand(job: JobPlan, words: list[str]) -> JobResult:
    """Start every replica of the job in its own process, over tcp; wait until all have succeeded."""
    processes: list[subprocess.Popen[bytes]] = []
    logs = job.run_dir.with_name(f"{job.run_dir.name}-logs")
    logs.mkdir()

    def start(number: int, address: str) -> subprocess.Popen[bytes]:
        command = shlex.split(job.commands(address, words)[number])
        log = logs / f"{job.replicas[number].name}.log"
        with log.open("wb") as output:
            command[0:1] = [sys.executable, "-m", "persia_cli"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        processes.append(process)
        return process

    try:
        coordinator = start(0, "tcp://127.0.0.1:0")
        address = _listening(coordinator, logs / "coordinator-0.log")
        for number in range(1, len(job.replicas)):
            start(number, address)
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = "\n".join(log.read_text() for log in sorted(logs.iterdir()))
    assert not any(codes), f"exit codes {codes}\n{said}"
    return result_of(job.run_dir)


def _listening(coordinator: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the coordinator prints its address."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and coordinator.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("listening at "):
                return line.removeprefix("listening at ")
        time.sleep(0.02)
    raise AssertionError(f"the coordinator does not listen: {log.read_text()}")

"""A replica's supervisor as a child of the driver: its input is its life, and its end differs from a loss."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.child import LOST, Child, failure_in
from persia_cli.engines.driver_input import input_text
from persia_cli.engines.processes import python_module
from persia_cli.engines.slurm.steps import is_lost_by_srun
from persia_cli.wire.secret import new_keys
from tests.conftest import poll_for

NOBODY = "tcp://127.0.0.1:9"
"""No process listens there: a role waits for its coordinator."""
WORDS = ["launch-role", "data-loader", "--index", "0", "--coordinator", NOBODY, "--key-file", "-", "--attached"]


def child_of(script: str, log: Path) -> Child:
    return Child("here", ["/bin/sh", "-c", script], "keys\n\n", log)


def code_of(child: Child) -> int:
    poll_for(lambda: child.code is not None, 60.0, "the end of the child")
    code = child.code
    child.close()
    assert code is not None
    return code


@pytest.mark.parametrize(
    ("script", "code", "why"),
    [
        ("read keys; echo $keys; exit 0", 0, "keys"),
        ("echo 'error: no data'; echo more; exit 2", 2, "no data"),
        ("kill -9 $$", 128 + signal.SIGKILL, "it printed nothing"),
        ("echo 'ssh: connect to host h2: No route' >&2; exit 255", LOST, "ssh: connect to host h2: No route"),
    ],
)
def test_its_end_is_reported_by_code_and_message(script: str, code: int, why: str, tmp_path: Path) -> None:
    child = child_of(script, tmp_path / "log")
    assert code_of(child) == code
    assert child.why == why


@pytest.mark.parametrize(
    ("code", "text", "is_lost"),
    [
        (1, "srun: error: Unable to create step for job 17: Requested nodes are busy\n", True),
        (1, "error: it fails\nsrun: error: n1: task 0: Exited with exit code 1\n", False),
        (2, "srun: error: n1: task 0: Exited with exit code 2\n", False),
    ],
)
def test_srun_reports_a_step_that_did_not_begin(code: int, text: str, is_lost: bool) -> None:
    assert is_lost_by_srun(code, text) == is_lost


def test_the_errors_of_a_command_count_and_else_its_last_line() -> None:
    assert failure_in("error: one\nmore\nerror: two\nend\n") == "one; two"
    assert failure_in("first\nlast\n\n") == "last"
    assert failure_in("") == "it printed nothing"


@pytest.mark.processes
@pytest.mark.parametrize("ends", ["end", "close"])
def test_a_replica_ends_with_its_input_and_hides_the_secret(ends: str, tmp_path: Path) -> None:
    keys = new_keys()
    child = Child("here", [*python_module("persia_cli"), *WORDS], input_text(keys), tmp_path / "log")
    own = psutil.Process(os.getpid())

    def processes() -> list[psutil.Process]:
        return [each for each in own.children(recursive=True) if "data-loader" in each.cmdline()]

    try:
        poll_for(lambda: len(processes()) == 2, 60.0, "the replica below its supervisor")
        started = processes()
        for process in started:
            seen = b"".join(Path(f"/proc/{process.pid}/{file}").read_bytes() for file in ("cmdline", "environ"))
            assert keys.secret not in seen
        (child.end if ends == "end" else child.close)()
        poll_for(lambda: not any(each.is_running() for each in started) or child.code, 20.0, "the end of both")
    finally:
        child.close()
    poll_for(lambda: not any(_lives(each) for each in started), 20.0, "the end of both")


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE

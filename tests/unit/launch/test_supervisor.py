"""A supervisor: which deaths it reports, when it starts the next process, and what it takes for the end."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from persia_cli.launch.supervisor import DeathReports, Supervised
from persia_cli.plan.job import Replica
from persia_cli.wire.job_messages import Death, Verdict
from tests.conftest import poll_for


class Reports:
    """In place of a coordinator: the deaths that were reported, and what is said to them."""

    def __init__(self) -> None:
        self.deaths: list[tuple[Death, Callable[[Verdict], None]]] = []

    def send(self, death: Death, on_verdict: Callable[[Verdict], None]) -> None:
        self.deaths.append((death, on_verdict))


def supervised(code: str, role: str = "data-loader") -> tuple[Supervised, Reports]:
    """A replica whose processes run this line of Python; `life` is their number."""
    reports = Reports()

    def start(life: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", f"life = {life}\n{code}"])

    made = Supervised(Replica(role, 1), start, Path(os.devnull), cast(DeathReports, reports))
    made.process.wait()
    return made, reports


def test_a_process_that_was_killed_is_replaced_once_the_coordinator_says_so() -> None:
    child, reports = supervised("import os; life == 1 and os.kill(os.getpid(), 9)")
    first = child.process.pid
    for _ in range(3):
        child.supervise()
    [(death, say)] = reports.deaths
    assert death == Death("data-loader", 1, first, -9)
    assert (child.may_return, child.failed) == (True, False)
    say(Verdict(True, 0.0, ""))
    child.supervise()
    assert child.process.pid != first
    poll_for(lambda: child.process.poll() == 0, 30.0, "the end of the second process")
    child.supervise()
    assert (len(reports.deaths), child.may_return, child.failed) == (1, False, False)


def test_a_death_too_many_is_the_end() -> None:
    child, reports = supervised("raise SystemExit(1)")
    child.supervise()
    reports.deaths[0][1](Verdict(False, 0.0, "data-loader-1 has had enough"))
    child.supervise()
    assert (len(reports.deaths), child.may_return, child.failed) == (1, False, True)
    assert child.final == "data-loader-1 has had enough"


@pytest.mark.parametrize("code", [2, 75])
def test_a_users_mistake_is_not_reported(code: int) -> None:
    """A new process would find the same mistake; nor is one wanted where the job was saved to be resumed."""
    child, reports = supervised(f"raise SystemExit({code})")
    child.supervise()
    assert (reports.deaths, child.may_return, child.failed) == ([], False, code == 2)


def test_roles_that_cannot_be_replaced_are_not_asked_for() -> None:
    child, reports = supervised("raise SystemExit(1)", "nn-worker")
    child.supervise()
    assert (reports.deaths, child.failed) == ([], True)


@pytest.mark.parametrize(
    ("end", "memory_is_kept", "expected"),
    [
        ("os.kill(os.getpid(), 9)", True, True),
        ("os.kill(os.getpid(), 15)", True, True),
        ("os.kill(os.getpid(), 9)", False, False),
        ("os.kill(os.getpid(), 11)", True, False),
        ("os.abort()", True, False),
        ("os._exit(1)", True, False),
        ("os._exit(74)", True, False),
    ],
)
def test_an_embedding_server_returns_if_its_memory_is_kept_and_can_be_trusted(
    end: str, memory_is_kept: bool, expected: bool
) -> None:
    reports = Reports()

    def start(life: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", f"import os; {end}"])

    child = Supervised(
        Replica("embedding-server", 0), start, Path(os.devnull), cast(DeathReports, reports), memory_is_kept
    )
    child.process.wait()
    child.supervise()
    assert (child.may_return, child.failed, len(reports.deaths)) == (expected, not expected, int(expected))

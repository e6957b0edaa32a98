"""A supervisor: which deaths it reports, when it starts the next process, and what it takes for the end."""

import subprocess
import sys
from collections.abc import Callable
from typing import cast

import pytest

from persia_cli.engines.role_options import RoleOptions
from persia_cli.engines.supervisor import DeathReports, Supervised
from persia_cli.wire.job_messages import Death, Verdict


class Reports:
    """In place of a coordinator: the deaths that were reported, and the answers to them."""

    def __init__(self) -> None:
        self.deaths: list[tuple[Death, Callable[[Verdict], None]]] = []

    def send(self, death: Death, on_verdict: Callable[[Verdict], None]) -> None:
        self.deaths.append((death, on_verdict))


class OfPython(Supervised):
    """A replica whose processes run a line of Python; `incarnation` is their number."""

    code = ""

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", f"incarnation = {self.incarnation}\n{self.code}"])


def supervised(code: str, role: str = "data-loader", retains_memory: bool = False) -> tuple[Supervised, Reports]:
    reports = Reports()
    kind = type("Made", (OfPython,), {"code": code})
    made = kind(RoleOptions(role, 1, "ipc:///nobody"), cast(DeathReports, reports), retains_memory)
    made.process.wait()
    return made, reports


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
    ("end", "memory_is_retained", "expected"),
    [
        ("os.kill(os.getpid(), 9)", True, True),
        ("os.kill(os.getpid(), 9)", False, False),
        ("os.kill(os.getpid(), 11)", True, False),
        ("os._exit(74)", True, False),
    ],
)
def test_an_embedding_server_returns_if_its_memory_can_be_trusted(
    end: str, memory_is_retained: bool, expected: bool
) -> None:
    child, reports = supervised(f"import os\nif incarnation == 1:\n    {end}", "embedding-server", memory_is_retained)
    child.supervise()
    assert (child.may_return, child.failed, len(reports.deaths)) == (expected, not expected, int(expected))
    if expected:
        reports.deaths[0][1](Verdict(True, 0.0, ""))
        child.supervise()
        assert child.process.wait() == 0
    child.close()

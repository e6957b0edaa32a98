"""A supervisor: which deaths it reports, when it starts the next process, and what it takes for the end."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from persia_cli.engines.job import COORDINATOR_ADDRESS
from persia_cli.engines.local import Processes
from persia_cli.engines.role_options import RoleOptions
from persia_cli.engines.supervisor import DeathReports, Supervised
from persia_cli.plan.job import COORDINATOR, plan_job
from persia_cli.wire.job_messages import Death, Verdict
from tests.conftest import poll_for
from tests.support.runs import make_facts, make_run


class Reports:
    """In place of a coordinator: the deaths that were reported, and the answers to them."""

    def __init__(self) -> None:
        self.deaths: list[tuple[Death, Callable[[Verdict], None]]] = []

    def send(self, death: Death, on_verdict: Callable[[Verdict], None]) -> None:
        self.deaths.append((death, on_verdict))


class OfPython(Supervised):
    """A replica whose processes run a line of Python; `life` is their number."""

    code = ""

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", f"life = {self.life}\n{self.code}"])


def supervised(code: str, role: str = "data-loader", retains_memory: bool = False) -> tuple[Supervised, Reports]:
    reports = Reports()
    kind = type("Made", (OfPython,), {"code": code})
    made = kind(RoleOptions(role, 1, "ipc:///nobody"), cast(DeathReports, reports), retains_memory)
    made.process.wait()
    return made, reports


def test_a_killed_process_is_replaced_once_the_coordinator_agrees() -> None:
    child, reports = supervised("import os; life == 1 and os.kill(os.getpid(), 9)")
    first = child._id
    assert first.pid == child.process.pid
    for _ in range(3):
        child.supervise()
    [(death, say)] = reports.deaths
    assert death == Death("data-loader", 1, first, -9)
    assert (child.may_return, child.failed) == (True, False)
    say(Verdict(True, 0.0, ""))
    child.supervise()
    assert child._id != first
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
    ("end", "memory_is_retained", "expected"),
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
    end: str, memory_is_retained: bool, expected: bool
) -> None:
    child, reports = supervised(f"import os\nif life == 1:\n    {end}", "embedding-server", memory_is_retained)
    child.supervise()
    assert (child.may_return, child.failed, len(reports.deaths)) == (expected, not expected, int(expected))
    if expected:
        reports.deaths[0][1](Verdict(True, 0.0, ""))
        child.supervise()
        assert child.process.wait() == 0
    child.close()


def test_a_replica_that_ends_after_the_coordinator_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that ends removes the file with its address, and then tells the others to end."""
    plan = plan_job(make_run(), make_facts(make_run(), 100, 0), "train", tmp_path)
    (tmp_path / "roles").mkdir()
    address = tmp_path / COORDINATOR_ADDRESS
    coordinator = f"open({str(address)!r}, 'w').write('ipc://{tmp_path}/nobody'); import time; time.sleep(60)"
    start = subprocess.Popen

    def stand_in(words: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        line = coordinator if COORDINATOR in words else "raise SystemExit(1)"
        return start([sys.executable, "-c", line], start_new_session=True)

    monkeypatch.setattr(subprocess, "Popen", stand_in)
    processes = Processes(plan, tmp_path)
    try:
        processes.start()
        address.unlink()
        poll_for(lambda: any(each.process.poll() for each in processes._started), 30.0, "a replica that has ended")
        processes.poll()
        assert processes.address
    finally:
        processes.stop()

"""A job of this machine is shown and ended by other commands, which know its run directory alone."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.wire.secret import TOKEN
from tests.conftest import poll_for
from tests.support.jobs import plan
from tests.support.launched import ENDLESS, LIMIT_S, Launched
from tests.support.one_by_one import children_of
from tests.support.threads import free_address

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def started(output: Path, *words: str) -> "subprocess.Popen[bytes]":
    with output.open("wb") as file:
        command = [sys.executable, "-m", "persia_cli", *words]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


@contextmanager
def started_by_hand(run: Path, logs: Path) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """The commands that a dry run prints, each with a supervisor; the coordinator's is the job's launcher."""
    job = plan([*ENDLESS, "cluster.transport=tcp"], run)
    logs.mkdir()
    roles = {}
    try:
        lines = job.commands(free_address(), [*ENDLESS, "cluster.transport=tcp"])
        for replica, line in zip(job.replicas, lines, strict=True):
            roles[replica.name] = started(logs / f"{replica.name}.log", *shlex.split(line)[1:], "--supervise")
            poll_for((run / TOKEN).exists, LIMIT_S, "the token of the coordinator")
        yield roles
    finally:
        below = [child for role in roles.values() for child in children_of(role)]
        for role in roles.values():
            role.kill()
            role.wait()
        psutil.wait_procs(below, timeout=LIMIT_S)


def test_roles_that_were_started_by_hand_are_shown_and_stopped_also_after_a_death(tmp_path: Path) -> None:
    run, shown, said = (tmp_path / name for name in ("run", "shown", "said"))
    with started_by_hand(run, tmp_path / "logs") as roles:
        poll_for(lambda: read_journal(run / METRICS), LIMIT_S, "steps trained")
        with started(shown, "attach", str(run)) as attach:
            poll_for(lambda: "training  step " in shown.read_text(), LIMIT_S, "the job on the screen")
            [worker] = psutil.Process(roles["embedding-worker-0"].pid).children()
            worker.kill()
            poll_for(lambda: recovered(run), LIMIT_S, "another embedding worker")
            assert started(said, "logs", str(run), "nn-worker").wait(LIMIT_S) == 2
            assert "roles that are started by hand write to their standard error" in said.read_text()
            assert started(said, "stop", str(run)).wait(LIMIT_S) == 75, said.read_text()
            assert "everything is stopped; the model is saved in" in said.read_text()
            assert attach.wait(LIMIT_S) == 75, shown.read_text()
        assert {role.wait(LIMIT_S) for role in roles.values()} == {75}
    assert started(said, "stop", str(run)).wait(LIMIT_S) == 2
    assert "has ended: persia logs" in said.read_text()


def recovered(run: Path) -> bool:
    return any(e["event"] == "recovered" and e["replica"] == "embedding-worker-0" for e in read_journal(run / EVENTS))


def test_commands_show_it_stop_it_and_report_its_end(tmp_path: Path) -> None:
    run, shown, stopped, late = (tmp_path / name for name in ("run", "shown", "stopped", "late"))
    with Launched(ENDLESS, run) as job:
        job.wait_for_training()
        with started(shown, "attach", str(run)) as attach:
            poll_for(lambda: "training  step" in shown.read_text(), LIMIT_S, "the job on the screen")
            assert started(stopped, "stop", str(run)).wait(LIMIT_S) == 75, stopped.read_text()
            assert "everything is stopped; the model is saved in" in stopped.read_text()
            assert attach.wait(LIMIT_S) == 75, shown.read_text()
        assert "stopped on request: everything is stopped; the model is saved in" in shown.read_text()
    assert started(late, "attach", str(run)).wait(LIMIT_S) == 75
    assert "stopped on request: everything is stopped" in late.read_text()
    assert started(late, "stop", str(run)).wait(LIMIT_S) == 2
    assert "has ended: persia logs" in late.read_text()

"""Messages of another user of the machine to a job over tcp do not change its result, nor end it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import result_of
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.conftest import poll_for
from tests.support import attacker
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train
from tests.support.launched import Launched
from tests.support.small import WORDS, counted, figures

pytestmark = pytest.mark.slow

NOBODY = 65534
LISTENING = ("coordinator", "embedding-server", "embedding-worker", "nn-worker")
LIMIT_S = 120.0


@contextmanager
def attacking() -> Iterator[subprocess.Popen[str]]:
    """Start the attacker, which becomes another user."""
    process = subprocess.Popen(
        [sys.executable, attacker.__file__, str(NOBODY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ports(driver: psutil.Process) -> set[int]:
    """Return the addresses on which the roles of a job listen."""
    return {
        connection.laddr.port
        for child in driver.children()
        for connection in child.net_connections("tcp4")
        if connection.status == psutil.CONN_LISTEN and "launch-role" in child.cmdline()
    }


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_hostile_user_cannot_end_a_job_over_tcp_nor_change_its_result(tmp_path: Path) -> None:
    words = [*WORDS, "train.epochs=6"]
    undisturbed = train([*words, "cluster=embedded"], tmp_path / "undisturbed")
    run_dir = tmp_path / "run"
    with Launched([*words, "cluster=local", "cluster.transport=tcp"], run_dir) as job, attacking() as attack:
        driver, told = psutil.Process(job.process.pid), set[int]()

        def tell_of_ports() -> bool:
            for port in ports(driver) - told:
                told.add(port)
                assert attack.stdin is not None
                attack.stdin.write(f"{port}\n")
                try:
                    attack.stdin.flush()
                except BrokenPipeError:
                    pytest.fail(f"the attacker ended: {attack.stderr.read() if attack.stderr else ''}")
            return len(told) == len(LISTENING) or job.process.poll() is not None

        poll_for(tell_of_ports, LIMIT_S, "all roles to listen")
        code, _ = job.end(LIMIT_S)
        assert attack.poll() is None
        done, said = attack.communicate(timeout=LIMIT_S)
        assert code == 0, job.output
    amounts = json.loads(done)
    assert len(amounts) == len(LISTENING), said
    assert all(sent > 10 and opened >= attacker.IDLE - 10 for sent, opened in amounts), amounts
    result = result_of(run_dir)
    assert figures(result) == figures(undisturbed)
    assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), newest_checkpoint(undisturbed.run_dir / CHECKPOINTS))
    for role in LISTENING:
        assert counted(result, role, "turned_away") > 0
        assert counted(result, role, "refused") == 0, "a message of a stranger was read"
    logs = "\n".join(path.read_text() for path in (run_dir / "roles").glob("*.log"))
    assert "Too many open files" not in logs

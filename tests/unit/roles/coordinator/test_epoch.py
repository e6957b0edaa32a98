"""Epochs: of all processes that coordinate a run one at a time has the newest, however many are started at once."""

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from persia_cli.errors import UserError
from persia_cli.roles.coordinator.epoch import EPOCHS, Epoch, SupersededError
from tests.conftest import poll_for

LIMIT_S = 60.0
TAKE = """
import sys, time
from pathlib import Path
from persia_cli.errors import UserError
from persia_cli.roles.coordinator.epoch import Epoch

run_dir = Path(sys.argv[1])
print("here", flush=True)
while not (run_dir / "go").exists():
    time.sleep(0.0005)
try:
    epoch = Epoch(run_dir)
except UserError as error:
    sys.exit(f"{error}")
print(epoch.number, flush=True)
sys.stdin.read()
"""


def taker(run_dir: Path, stack: ExitStack) -> "subprocess.Popen[str]":
    """A process that takes an epoch once there is a file `go`, and keeps it until its input ends or it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE, str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_many_that_start_at_once_one_gets_the_epoch(tmp_path: Path) -> None:
    with ExitStack() as stack:
        takers = [taker(tmp_path, stack) for _ in range(8)]
        (tmp_path / "go").touch()
        poll_for(lambda: sum(each.poll() is not None for each in takers) == 7, LIMIT_S, "seven to be refused")
        [winner] = [each for each in takers if each.poll() is None]
        assert said(winner) == "1"
        for other in takers:
            if other is not winner:
                assert other.stderr is not None
                assert "a run has one coordinator at a time" in other.stderr.read()
        assert [path.name for path in (tmp_path / EPOCHS).iterdir()] == ["1"]


def test_the_next_one_comes_only_after_a_death(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with ExitStack() as stack:
        first = taker(tmp_path, stack)
        assert said(first) == "1"
        first.send_signal(signal.SIGSTOP)
        with pytest.raises(UserError, match=rf"process {first.pid} on .* coordinates the run in {tmp_path}"):
            Epoch(tmp_path)
        first.send_signal(signal.SIGCONT)
        first.kill()
        first.wait(LIMIT_S)
        epoch = Epoch(tmp_path)
        assert epoch.number == 2
        epoch.close()


def test_one_that_was_superseded_says_so(tmp_path: Path) -> None:
    """As on a file system without locks, where nobody can tell whether the process before is alive."""
    epoch = Epoch(tmp_path)
    epoch.require_newest()
    (tmp_path / EPOCHS / "2").write_text("{}\n")
    with pytest.raises(SupersededError, match=r"epoch 2\), so this one \(epoch 1\) ends"):
        epoch.require_newest()
    epoch.close()


def test_half_a_file_of_one_that_was_killed_is_no_epoch(tmp_path: Path) -> None:
    (tmp_path / EPOCHS).mkdir()
    (tmp_path / EPOCHS / "0f.part").write_text("{")
    epoch = Epoch(tmp_path)
    assert epoch.number == 1
    assert (tmp_path / EPOCHS / "1").exists()
    epoch.close()

"""A drill that is killed leaves nothing disturbed: no process stands still, none may only write small files."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from persia_cli.drill.strikes import TINY, full_disk, stop
from persia_cli.launch.running import process_of
from tests.conftest import poll_for

DRILL = """
import sys, time
from persia_cli.launch.running import process_of
from persia_cli.drill.strikes import full_disk, slow, stop

target = process_of(int(sys.argv[1]))
if sys.argv[2] == "full_disk":
    with full_disk([target]):
        time.sleep(600)
else:
    {"stop": stop, "slow": slow}[sys.argv[2]]([target], 600, time.sleep)
"""
LIMIT_S = 60.0


@pytest.fixture
def target() -> Iterator[psutil.Process]:
    """A process that does nothing."""
    process = subprocess.Popen(["sleep", "600"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def is_disturbed(target: psutil.Process) -> bool:
    limit = resource.prlimit(target.pid, resource.RLIMIT_FSIZE)[0]
    return target.status() == psutil.STATUS_STOPPED or limit == TINY


def guards_of(drill: int) -> list[psutil.Process]:
    return psutil.Process(drill).children()


@pytest.mark.parametrize("kind", ["stop", pytest.param("slow", marks=pytest.mark.slow), "full_disk"])
def test_it_is_undone_when_the_drill_is_killed(target: psutil.Process, kind: str) -> None:
    drill = subprocess.Popen([sys.executable, "-c", DRILL, str(target.pid), kind], start_new_session=True)
    try:
        poll_for(lambda: is_disturbed(target) or drill.poll() is not None, LIMIT_S, "the disturbance")
        guards = guards_of(drill.pid)
        os.killpg(drill.pid, signal.SIGKILL)
    finally:
        drill.kill()
        drill.wait()
    assert len(guards) == 1
    poll_for(lambda: not is_disturbed(target), LIMIT_S, "its end")
    assert psutil.wait_procs(guards, timeout=LIMIT_S)[1] == []
    assert not is_disturbed(target)


def test_it_is_undone_at_the_end_of_the_block_whatever_became_of_the_guard(target: psutil.Process) -> None:
    process = process_of(target.pid)
    assert process is not None

    def kill_the_guard(_: float) -> None:
        poll_for(lambda: is_disturbed(target), LIMIT_S, "the disturbance")
        for child in guards_of(os.getpid()):
            if any("guard" in word for word in child.cmdline()):
                child.kill()

    stop([process], 1.0, kill_the_guard)
    assert not is_disturbed(target)
    with full_disk([process]):
        kill_the_guard(0.0)
    assert not is_disturbed(target)


def test_who_has_ended_meanwhile_is_left_alone(target: psutil.Process) -> None:
    process = process_of(target.pid)
    assert process is not None
    with full_disk([process]):
        target.kill()
        poll_for(lambda: not process.lives, LIMIT_S, "the end of the process")

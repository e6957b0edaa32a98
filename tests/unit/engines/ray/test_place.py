"""A place starts a supervisor, hands it the job's keys by a pipe, and says how it does; nothing of it has a name."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.handed_over import text_of
from persia_cli.engines.ray.place import News, Place
from persia_cli.wire.secret import new_keys
from tests.conftest import poll_for

NOBODY = "tcp://127.0.0.1:9"
"""Nobody listens there: a role waits for its coordinator."""
WORDS = ["launch-role", "data-loader", "--index", "0", "--coordinator", NOBODY, "--key-file", "-", "--supervise"]


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def supervisor_with_child() -> psutil.Process:
    """The supervisor that this process has started, once it has started its own."""

    def found() -> list[psutil.Process]:
        # Tests before this one may have left a process of their libraries, such as the resource tracker.
        return [each for each in psutil.Process(os.getpid()).children() if "launch-role" in each.cmdline()]

    poll_for(lambda: any(each.children() for each in found()), 60.0, "the process of a supervisor")
    return found()[0]


def ended(place: Place) -> News:
    poll_for(lambda: place.news(0).code is not None, 60.0, "the end of the supervisor")
    return place.news(0)


def test_a_mistake_comes_with_its_words_and_exit_code(place: Place) -> None:
    place.start(["launch-role", "cook", *WORDS[2:]], text_of(new_keys()))
    news = ended(place)
    assert news.code == 2
    assert b"error: there is no role 'cook'" in news.said


@pytest.mark.processes
def test_the_secret_is_in_no_command_line_or_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of the cluster")
    keys = new_keys()
    place.start(WORDS, text_of(keys))
    supervisor = supervisor_with_child()
    processes = [supervisor, *supervisor.children()]
    assert len(processes) == 2
    for process in processes:
        seen = b"".join(Path(f"/proc/{process.pid}/{file}").read_bytes() for file in ("cmdline", "environ"))
        assert keys.secret not in seen
        assert b"RAY_AUTH_TOKEN" not in seen
    place.signal(signal.SIGKILL)
    assert ended(place).code == -signal.SIGKILL
    poll_for(lambda: not processes[1].is_running(), 10.0, "the end of its process")


@pytest.mark.processes
def test_an_interrupt_reaches_it_though_ray_blocks_those_in_its_workers(place: Place) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        place.start(WORDS, text_of(new_keys()))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    supervisor_with_child()
    place.signal(signal.SIGINT)
    assert ended(place).code != 0

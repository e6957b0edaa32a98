"""The parent of workers: one that hangs or stands still is replaced, and one that is only busy is not."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from persia_cli.errors import RoleError, UserError
from persia_cli.server import settings, workers
from persia_cli.server.settings import ServerSettings
from persia_cli.server.workers import Workers
from tests.conftest import poll_for

LIMIT_S = 20.0
WORKER = """
import json, os, sys, time
order = json.load(sys.stdin)
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()} {order['after']}\\n")
if order["after"] is not None and sys.argv[2] == "refuses":
    print(json.dumps({"failure": "the model is gone", "is_users": True}), flush=True)
    sys.exit(2)
if order["after"] is not None and sys.argv[2] == "dies":
    os.abort()
print('{}', flush=True)
while order["after"] is None and sys.argv[2] == "hangs":
    pass
while True:
    busy = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < busy:
        pass
    print(flush=True)
    time.sleep(0.02)
"""


class Started:
    """What workers have told of their start, and what happens once all are ready."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "started"
        self.failure: BaseException | None = None

    def words(self) -> list[list[str]]:
        return [line.split(maxsplit=1) for line in self.path.read_text().splitlines()]

    def pids(self) -> list[int]:
        return [int(pid) for pid, _ in self.words()]

    def reasons(self) -> list[str]:
        return [reason for _, reason in self.words()]

    def meanwhile(self, test: Callable[["Started"], None]) -> None:
        """Test, and end the server in this process."""
        try:
            test(self)
        except BaseException as error:
            self.failure = error
        os.kill(os.getpid(), signal.SIGTERM)


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, test: Callable[[Started], None], count: int = 1,
    kind: str = "works", busy_s: float = 0.0,
) -> Started:  # fmt: skip
    """Run workers that are not those of a model, and test something once they are ready."""
    started = Started(folder)
    command = [sys.executable, "-c", WORKER, str(started.path), kind, str(busy_s)]
    monkeypatch.setattr(workers, "python_module", lambda module: command)
    monkeypatch.setattr(workers, "digest_of", lambda folder: "")
    thread = threading.Thread(target=started.meanwhile, args=[test])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Workers(ServerSettings(str(folder)), listener, count).run(thread.start)
    thread.join(LIMIT_S)
    if started.failure is not None:
        raise started.failure
    return started


def test_one_that_hangs_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "SILENCE_S", 0.5)

    def is_replaced(started: Started) -> None:
        poll_for(lambda: len(started.words()) == 2, LIMIT_S, "there is another worker")

    started = run(tmp_path, monkeypatch, is_replaced, kind="hangs")
    assert started.reasons() == ["None", "hung"]
    [line] = caplog.messages
    assert line == f"worker 0, process {started.pids()[0]}, has hung for 0.5 s, and was killed; the next one starts"


def test_one_that_is_stopped_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "STOPPED_S", 0.3)

    def is_replaced(started: Started) -> None:
        os.kill(started.pids()[0], signal.SIGSTOP)
        poll_for(lambda: len(started.words()) == 3, LIMIT_S, "there is another worker")

    started = run(tmp_path, monkeypatch, is_replaced, count=2)
    assert started.reasons() == ["None", "None", "stopped"]
    [line] = caplog.messages
    assert "was stopped by a signal, and for 0.3 s nobody let it go on, and was killed; the next one starts" in line


def test_one_that_is_busy_for_a_legal_time_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SILENCE_S", 1.5)
    monkeypatch.setattr(workers, "STOPPED_S", 0.1)

    def is_left_alone(started: Started) -> None:
        until = time.monotonic() + 2.5
        poll_for(lambda: time.monotonic() > until, LIMIT_S, "several long requests")

    assert run(tmp_path, monkeypatch, is_left_alone, busy_s=0.6).reasons() == ["None"]


def test_none_is_killed_for_the_time_in_which_all_stood_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP and SIGCONT of the whole group, or on a machine that was suspended."""
    lost_s, rounds = 0.0, 0

    def monotonic() -> float:
        nonlocal rounds
        rounds += 1
        return time.monotonic() + lost_s

    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))

    def goes_on(started: Started) -> None:
        nonlocal lost_s
        lost_s = 1000.0
        now = rounds
        poll_for(lambda: rounds > now + 30, LIMIT_S, "the parent goes on")

    assert run(tmp_path, monkeypatch, goes_on, count=2).reasons() == ["None", "None"]


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [("refuses", UserError, "0.5 s: the model is gone"), ("dies", RoleError, "the last worker ended by SIGABRT")],
)
def test_a_server_that_nobody_serves_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception], words: str
) -> None:
    """It has the socket, so clients would be connected, and wait."""
    started = Started(tmp_path)
    command = [sys.executable, "-c", WORKER, str(started.path), kind, "0"]
    monkeypatch.setattr(workers, "python_module", lambda module: command)
    monkeypatch.setattr(workers, "digest_of", lambda folder: "")
    monkeypatch.setattr(workers, "NOBODY_S", 0.5)

    def kill() -> None:
        for pid in started.pids():
            os.kill(pid, signal.SIGKILL)

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(error, match=words):
        Workers(ServerSettings(str(tmp_path)), listener, 2).run(kill)
    assert len(started.words()) > 2


def test_larger_requests_may_take_longer() -> None:
    assert ServerSettings("m").silence_s == settings.SILENCE_S
    assert ServerSettings("m", most_samples=30_000).silence_s == 3 * settings.SILENCE_S
    assert ServerSettings("m", most_samples=10, most_bytes=2**26).silence_s == 4 * settings.SILENCE_S

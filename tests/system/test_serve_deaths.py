"""`persia serve` while its workers are killed and stopped under load, and when it ends under load."""

import http.client
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import poll_for
from tests.support.asgi import Response, outputs_of
from tests.support.small_model import write_small_model
from tests.system.test_serve import BODY, INFER, READY_S, Server, expected, serving

CLIENTS = 6
PATIENCE_S = 3.0
"""Seconds for which a client waits for an answer."""
OPTIONS = ["--workers", "2"]


class Load:
    """Clients that ask again and again, each on a connection that it keeps as long as it can."""

    def __init__(self, server: Server, right: Any) -> None:
        self._server, self._right = server, right
        self._is_over = threading.Event()
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _connected(self) -> http.client.HTTPConnection:
        connection = self._server.connect()
        connection.timeout = PATIENCE_S
        return connection

    def _ask(self) -> None:
        connection = self._connected()
        while not self._is_over.is_set():
            try:
                connection.request("POST", INFER, BODY)
                got = connection.getresponse()
                body = got.read()
            except (OSError, http.client.HTTPException) as error:
                # Of a worker that is no more. Half an answer is known as such by its length; the client can ask again.
                self.seen[type(error).__name__] += 1
                connection.close()
                connection = self._connected()
                continue
            self.seen[str(got.status)] += 1
            if got.status != 200:
                self.wrong.append(body.decode())
            elif (found := outputs_of(Response(200, {}, body))) != self._right:
                self.wrong.append(f"{found}")
        connection.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "shop")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_deaths_and_stops_at_random_moments_make_no_answer_wrong(model: Path, tmp_path: Path) -> None:
    draw = random.Random(4)
    with serving(model, tmp_path / "deaths", *OPTIONS) as server:
        first = server.workers()
        with Load(server, expected(model)) as load:
            for number in range(4):
                poll_for(server.are_ready, READY_S, "all workers are there")
                victim = draw.choice(server.workers())
                if number % 2:
                    victim.send_signal(signal.SIGSTOP)
                until = time.monotonic() + draw.uniform(0.0, 0.3)
                before = sum(load.seen.values())
                poll_for(lambda: time.monotonic() > until, 5.0, "a random moment")  # noqa: B023
                if number % 2:  # the others answer on while one stands
                    poll_for(lambda: load.seen["200"] > before, READY_S, "answers")  # noqa: B023
                victim.kill()
            poll_for(server.are_ready, READY_S, "all workers are there")
            answered = load.seen["200"]
            poll_for(lambda: load.seen["200"] > answered + 100, READY_S, "answers")
        assert load.wrong == []
        # All connections may be with the worker that stands, until their clients lose patience.
        cut_off = {"TimeoutError", "ConnectionResetError", "RemoteDisconnected", "BrokenPipeError", "IncompleteRead"}
        assert set(load.seen) <= {"200", *cut_off}, load.seen
        assert load.seen["200"] > 500
        assert len(server.workers()) == 2
        assert server.workers() != first


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_end_under_load_leaves_no_half_answer_and_no_process(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "end", *OPTIONS) as server:
        workers = server.workers()
        with Load(server, expected(model)) as load:
            poll_for(lambda: load.seen["200"] > 200, READY_S, "answers")
            os.kill(server.process.pid, signal.SIGTERM)
            assert server.process.wait(20) == 0
            assert not any(each.is_running() for each in workers)
        assert load.wrong == []
        # A connection that waits for its next request may be closed in the moment in which that is sent.
        allowed = {"200", "ConnectionRefusedError", "ConnectionResetError", "RemoteDisconnected", "BrokenPipeError"}
        assert set(load.seen) <= allowed, load.seen
        assert "Traceback" not in server.log.read_text()

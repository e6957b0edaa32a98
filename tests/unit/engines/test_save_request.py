"""The request for a checkpoint: answered by the coordinator alone, and refused where there is none to ask."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from persia_cli.config.record import write_run
from persia_cli.engines.handed_over import file_in_memory
from persia_cli.engines.job import COORDINATOR_ADDRESS, SECRET_FILE
from persia_cli.engines.save_request import save_now
from persia_cli.errors import UserError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, Journal
from persia_cli.wire.job_messages import SavedNow, SaveNow
from persia_cli.wire.loop import Loop
from persia_cli.wire.secret import new_secret
from persia_cli.wire.server import Peer
from persia_cli.wire.sockets import Context
from tests.support.runs import make_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_run(make_run(), tmp_path / CONFIG)
    return tmp_path


@contextmanager
def coordinator(run_dir: Path, answer: Callable[[], SavedNow]) -> Iterator[None]:
    """A coordinator, whose secret is in a file in memory, as on another machine."""
    secret = new_secret()
    file = str(file_in_memory(secret.token.hex())).replace("/self/", f"/{os.getpid()}/")
    (run_dir / SECRET_FILE).write_text(f"{file}\n")
    context, over = Context(secret), threading.Event()
    loop, journal = Loop(context, "coordinator"), Journal(run_dir / EVENTS, alone=True)
    server = loop.serve(f"ipc://{run_dir}/c")
    (run_dir / COORDINATOR_ADDRESS).write_text(server.address + "\n")

    def on_save_now(peer: Peer, message: SaveNow) -> None:
        server.reply(peer, answer())

    def serve() -> None:
        server.on(SaveNow, on_save_now)
        while not over.is_set():
            loop.poll(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        loop.close()
        context.destroy(linger=0)
        journal.close()


def test_the_answer_is_the_checkpoint(run_dir: Path) -> None:
    with coordinator(run_dir, lambda: SavedNow("/run/checkpoints/step-9")):
        assert save_now(run_dir) == "/run/checkpoints/step-9"


def test_a_refusal_has_its_reason(run_dir: Path) -> None:
    with (
        coordinator(run_dir, lambda: SavedNow("", "this job trains nothing")),
        pytest.raises(UserError, match="saved nothing: this job trains nothing"),
    ):
        save_now(run_dir)


def test_a_job_that_has_ended_is_not_asked(run_dir: Path) -> None:
    (run_dir / EVENTS).touch()
    with pytest.raises(UserError, match="is not running, and it has no checkpoint"):
        save_now(run_dir)


def test_a_job_that_has_not_begun_has_nothing_to_save(run_dir: Path) -> None:
    journal = Journal(run_dir / EVENTS, alone=True)
    with pytest.raises(UserError, match="has not begun to train"):
        save_now(run_dir)
    journal.close()

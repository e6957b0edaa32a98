"""A worker whose parent dies while it starts ends without a word too many."""

import subprocess
import sys

import msgspec
import pytest

from persia_cli.server.settings import ServerSettings, WorkerOrder

ORDER = WorkerOrder(
    ServerSettings("nowhere"), parent=1, listener=9, connections=10, number=0, workers=1, model=""
)  # fmt: skip


@pytest.mark.parametrize("order", [b"", msgspec.json.encode(ORDER)])
def test_a_worker_without_its_parent_does_not_begin(order: bytes) -> None:
    """Process 1 has not started it."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "persia_cli.server.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert worker.stdout is not None
    worker.stdout.close()
    assert worker.stdin is not None
    assert worker.stderr is not None
    worker.stdin.write(order)
    worker.stdin.close()
    said = worker.stderr.read()
    worker.stderr.close()
    assert worker.wait(30) != 0
    assert b"Traceback" not in said, said

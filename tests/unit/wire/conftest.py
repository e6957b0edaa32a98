"""A ZeroMQ context that a test must leave without open sockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from persia_cli.disk import own_folder
from persia_cli.wire.addresses import SOCKETS, ipc_address
from persia_cli.wire.sockets import Context
from tests.support.closing import close_in_time

TERM_LIMIT_S = 10.0


@pytest.fixture(scope="session", autouse=True)
def _releasing_thread() -> None:
    """Send an array without copying: pyzmq starts its one thread for that at the first, and runs it from then on."""
    with zmq.Context() as warm, warm.socket(zmq.PAIR) as near, warm.socket(zmq.PAIR) as far:
        near.bind("inproc://warm")
        far.connect("inproc://warm")
        near.send(bytes(1 << 20), copy=False)
        far.recv()


@pytest.fixture
def context() -> Iterator[Context]:
    made = Context()
    yield made
    close_in_time(made, TERM_LIMIT_S)


@pytest.fixture
def ipc_directory() -> Iterator[Path]:
    with own_folder(SOCKETS) as directory:
        yield directory


@pytest.fixture(params=["inproc", "ipc", "tcp"])
def address(request: pytest.FixtureRequest, ipc_directory: Path) -> str:
    """An address for a server, over each transport."""
    return {
        "inproc": "inproc://server",
        "ipc": ipc_address(ipc_directory, "server"),
        "tcp": "tcp://127.0.0.1:0",
    }[request.param]

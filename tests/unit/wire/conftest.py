"""A ZeroMQ context that a test must leave without open sockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from persia_cli.disk import own_folder
from persia_cli.wire.addresses import SOCKETS, ipc_address
from persia_cli.wire.sockets import Context
from tests.support.closing import close_in_time

TERM_LIMIT_S = 10.0


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

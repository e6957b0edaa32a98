"""A server on its own thread, for tests of clients."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from persia_cli.wire.loop import Loop
from persia_cli.wire.server import Server
from persia_cli.wire.shared_memory import SharedMemory
from persia_cli.wire.sockets import Context

LIMIT_S = 30.0


@contextmanager
def serving(
    context: Context,
    address: str,
    register: Callable[[Server], None],
    memory: SharedMemory | None = None,
) -> Iterator[Server]:
    """Serve at `address` until the end of the block; `register` sets its handlers."""
    loop = Loop(context, "test-server")
    loop.share(memory)
    server = loop.serve(address)
    register(server)
    waker = loop.waker()
    stopping = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not stopping.is_set():
                loop.poll(1.0)
        except BaseException as error:
            failures.append(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="test-server")
    thread.start()
    try:
        yield server
    finally:
        stopping.set()
        waker.wake()
        thread.join(LIMIT_S)
    assert not failures, f"the server ended by {failures[0]!r}"


def poll_until(loop: Loop, condition: Callable[[], bool]) -> None:
    """Poll a loop until a condition holds; fails after half a minute."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        loop.poll(0.05)

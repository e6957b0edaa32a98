"""The end of a ZeroMQ context, within a deadline."""

import gc
import threading

import pytest
import zmq

from persia_cli.wire.sockets import Context


def close_in_time(context: Context, limit_s: float) -> None:
    """Close a context, and fail if a socket in it is open, for which that would wait for ever."""
    term = threading.Thread(target=context.term, daemon=True)
    term.start()
    term.join(limit_s)
    if term.is_alive():
        # One by one, since closing the context in two threads at once is not safe.
        for socket in [
            each for each in gc.get_objects() if issubclass(type(each), zmq.Socket) and each.context is context
        ]:
            socket.close(linger=0)
        term.join(limit_s)
        pytest.fail("a socket was left open" + (", and cannot be closed" if term.is_alive() else ""))

"""A process that loads an HTTP server: `python -m scripts.measure.load` reads a `Load` and writes a `Loaded`.

Requests follow each other on each connection (closed loop), or arrive at random moments of a rate and do not wait for
answers (open loop). Then latency counts from the moment when a request was due, also if all connections were in use: a
slow server is not spared the requests that would have come meanwhile. wrk, hey and vegeta have no such arrivals, and
compare no answers.
"""

import asyncio
import gc
import re
import selectors
import subprocess
import sys
import time
from array import array
from collections import deque
from itertools import cycle

import msgspec
import numpy as np
from numpy.typing import NDArray

from persia_cli.engines.processes import python_module
from persia_cli.errors import RoleError

HOST = "127.0.0.1"
OK, BUSY = 200, 503
GRACE_S = 60.0
"""Seconds, beyond those of the load and of its patience, after which the process is aborted."""


class Load(msgspec.Struct, frozen=True):
    """The load of a server."""

    port: int
    requests: list[tuple[bytes, dict[str, bytes]]]
    """Requests, which are sent in turn over and over, and the only right body of the answer to each, by version."""
    connections: int
    seconds: float
    """Answers that come within these seconds count, and latencies of requests due within them."""
    rate: float | None = None
    """Requests per second at random moments; None: each connection sends as soon as it has its answer."""
    warm_up_s: float = 1.0
    """Seconds before those that count."""
    patience_s: float = 20.0
    """Seconds after the end in which answers are waited for."""
    seed: int = 0
    """Of the random moments."""


class Loaded(msgspec.Struct):
    """The result of a load."""

    failure: str = ""
    """Reason if the load was aborted."""
    answered: int = 0
    """Predictions that came in time."""
    due: int = 0
    """Requests that were due in time."""
    busy: int = 0
    """Those among them that were answered 503, also late."""
    errors: int = 0
    """Those that were answered by another status, also late, or not at all."""
    first_error: str = ""
    latencies: bytes = b""
    """Of those that got predictions, also late: float64 seconds from the moment when each was due."""
    first: dict[str, float] = {}
    """When each version answered first, in seconds since 1970."""
    cpu_s: float = 0.0
    """CPU seconds of the process that sent them."""
    wall_s: float = 0.0

    def seconds_each(self) -> NDArray[np.float64]:
        """Return the latencies."""
        return np.frombuffer(self.latencies, np.float64)


def load(order: Load) -> Loaded:
    """Load a server from another process; raises RoleError if it cannot be, or answers wrongly."""
    done = subprocess.run(
        python_module("scripts.measure.load"), input=msgspec.msgpack.encode(order), stdout=subprocess.PIPE,
        timeout=order.warm_up_s + order.seconds + order.patience_s + GRACE_S, check=True,
    )  # fmt: skip
    loaded = msgspec.msgpack.decode(done.stdout, type=Loaded)
    if loaded.failure:
        raise RoleError(loaded.failure)
    return loaded


def moments(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Return the moments, in seconds from now, at which requests arrive independently of each other."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds + 10 * (rate * seconds) ** 0.5 + 10))
    arrivals: NDArray[np.float64] = np.cumsum(gaps)
    return arrivals[arrivals < seconds]


class Connection:
    """A connection, which is kept for many requests, one at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, str, bytes]:
        """Send a request; return status, version and body of the answer.

        Raises OSError, EOFError for a broken connection.
        """
        if self._streams and self._streams[0].at_eof():  # the server may close a connection between two requests
            self.close()
        reader, writer = self._streams = self._streams or await asyncio.open_connection(HOST, self._port)
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        version = re.search(rb"\r\nx-model-version: (\w+)", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if b"\r\nconnection: close" in head:
            self.close()
        return int(head[9:12]), version[1].decode() if version else "", body

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._streams:
            self._streams[1].close()
        self._streams = None


class Generator:
    """Loads a server once."""

    def __init__(self, order: Load) -> None:
        self._order, self._requests = order, cycle(order.requests)
        self._connections = [Connection(order.port) for _ in range(order.connections)]
        self._idle = self._connections.copy()
        self._waiting: deque[float] = deque()
        """The moments of requests that are due, and have no connection yet."""
        self._latencies = array("d")
        self.loaded = Loaded()

    async def run(self) -> Loaded:
        """Send all requests, read their answers; raises RoleError for wrong predictions, OSError if nothing listens."""
        order, loaded, cpu = self._order, self.loaded, time.process_time()
        start = time.perf_counter()
        self._begin = start + order.warm_up_s
        self._end = self._begin + order.seconds
        limit_s = order.warm_up_s + order.seconds + order.patience_s
        try:
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
                if order.rate is None:
                    for connection in self._connections:
                        tasks.create_task(self._one_after_another(connection))
                else:
                    await self._at_random_moments(start + moments(order.rate, self._end - start, order.seed), tasks)
        except TimeoutError:
            pass
        finally:
            for connection in self._connections:
                connection.close()
        missed = loaded.due - len(self._latencies) - loaded.busy - loaded.errors
        if missed:
            loaded.errors += missed
            loaded.first_error = loaded.first_error or f"none within {order.patience_s:g} s after the end"
        loaded.latencies = self._latencies.tobytes()
        loaded.cpu_s, loaded.wall_s = time.process_time() - cpu, time.perf_counter() - start
        return loaded

    async def _one_after_another(self, connection: Connection) -> None:
        while (now := time.perf_counter()) < self._end:
            self.loaded.due += now >= self._begin
            await self._ask(connection, now)

    async def _at_random_moments(self, arrivals: NDArray[np.float64], tasks: asyncio.TaskGroup) -> None:
        self.loaded.due = int(np.count_nonzero(arrivals >= self._begin))
        for due in arrivals.tolist():
            await asyncio.sleep(due - time.perf_counter())
            self._waiting.append(due)
            if self._idle:
                tasks.create_task(self._send_waiting(self._idle.pop()))

    async def _send_waiting(self, connection: Connection) -> None:
        while self._waiting:
            await self._ask(connection, self._waiting.popleft())
        self._idle.append(connection)

    async def _ask(self, connection: Connection, due: float) -> None:
        """Send a request and count its answer."""
        (request, right), loaded = next(self._requests), self.loaded
        try:
            status, version, body = await connection.ask(request)
        except ConnectionRefusedError:
            raise RoleError(f"the server does not take connections at port {self._order.port} any more") from None
        except (OSError, EOFError) as error:
            connection.close()
            status, version, body = 0, "", f"a broken connection: {error}".encode()
        now = time.perf_counter()
        if status == OK and body != right.get(version):
            raise RoleError("the server answers with other predictions than the model gives in this process")
        if status == OK and version not in loaded.first:
            loaded.first[version] = time.time()
        loaded.answered += status == OK and self._begin <= now < self._end
        # By when it was due: else those that a slow server refuses late would be in no count.
        if not self._begin <= due < self._end:
            return
        if status == OK:
            self._latencies.append(now - due)
        elif status == BUSY:
            loaded.busy += 1
        else:
            loaded.errors += 1
            loaded.first_error = loaded.first_error or f"{status or ''} {body.decode(errors='replace')}".strip()


def generate(order: Load) -> Loaded:
    """Load a server from this process; the reason of a failure is in the result."""
    # Not epoll, whose timeouts are whole milliseconds: requests would be sent that late.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        try:
            return runner.run(Generator(order).run())
        except ExceptionGroup as failures:
            failure = failures.subgroup(RoleError)
            if failure is None:
                raise
            return Loaded(failure=str(failure.exceptions[0]))


if __name__ == "__main__":
    decoded = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Load)
    gc.freeze()
    sys.stdout.buffer.write(msgspec.msgpack.encode(generate(decoded)))

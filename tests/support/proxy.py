"""A TCP relay on the loopback interface that breaks the connections through it when a test requests it."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

START_S = 10.0


class Proxy:
    """A relay in front of the server at `target` ("tcp://127.0.0.1:PORT"); clients connect to `address` instead.

    Use it as a context manager; any thread may cause faults. `cuts` counts connections that it broke or refused.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self.address = ""
        self.cuts = 0
        self._delay_s = 0.0
        self._down = False
        self._left: int | None = None
        """Bytes that clients may still send before one connection breaks."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="proxy")
        self._started = threading.Event()
        self._relays: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_S), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._stopped.set)
        self._thread.join()

    def cut(self) -> None:
        """Break every connection at once; data in flight is lost."""
        self._call(self._cut)

    def cut_after(self, nbytes: int) -> None:
        """Break one connection, the one with the last of so many bytes that clients send from now on."""
        self._left = nbytes

    def go_down(self) -> None:
        """Break every connection, and refuse new ones until `come_up`."""
        self._down = True
        self.cut()

    def come_up(self) -> None:
        self._down = False

    def stall(self, requests: bool = True, replies: bool = True) -> None:
        """Stop forwarding requests and answers; connections stay open."""
        if requests:
            self._call(self._requests_pass.clear)
        if replies:
            self._call(self._replies_pass.clear)

    def resume(self) -> None:
        """Forward everything again, the delayed data first."""
        self._call(self._requests_pass.set)
        self._call(self._replies_pass.set)

    def delay(self, seconds: float) -> None:
        """Delay each piece of data by so long from now on."""
        self._delay_s = seconds

    def _call(self, action: Callable[[], None]) -> None:
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(act)
        assert done.wait(START_S), "the proxy does not respond"

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._requests_pass, self._replies_pass = asyncio.Event(), asyncio.Event()
        self._requests_pass.set()
        self._replies_pass.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._stopped.wait()
        server.close()
        self._cancel_relays()
        await asyncio.gather(*self._relays, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._down:
            self.cuts += 1
            writer.transport.abort()
            return
        relay = self._loop.create_task(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)
        # Also if the relay is cancelled before it begins: a connection must not stay open without a relay.
        relay.add_done_callback(lambda _: writer.transport.abort())

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection both ways until either end closes it."""
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            return
        pumps = [
            self._loop.create_task(self._pump(reader, far_writer, self._requests_pass, from_client=True)),
            self._loop.create_task(self._pump(far_reader, writer, self._replies_pass)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            far_writer.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        passing: asyncio.Event,
        from_client: bool = False,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if from_client and self._breaks_at(len(data)):
                    return
                await passing.wait()
                await asyncio.sleep(self._delay_s)
                writer.write(data)
                await writer.drain()

    def _breaks_at(self, nbytes: int) -> bool:
        if self._left is None:
            return False
        self._left -= nbytes
        if self._left > 0:
            return False
        self._left = None
        self.cuts += 1
        return True

    def _cut(self) -> None:
        self.cuts += len(self._relays)
        self._cancel_relays()

    def _cancel_relays(self) -> None:
        for relay in self._relays:
            relay.cancel()

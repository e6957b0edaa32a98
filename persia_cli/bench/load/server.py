"""A server to load, in separate processes, as `persia serve` starts it."""

import logging
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from persia_cli.engines.processes import die_with, python_module
from persia_cli.errors import PersiaError, RoleError, UserError
from persia_cli.observe.machine import cpu_seconds_of
from persia_cli.serving.http.listening import bound
from persia_cli.serving.http.processes import serve
from persia_cli.serving.http.settings import FINISH_S, ServerSettings

HOST = "127.0.0.1"
START_S = 60.0
"""Seconds within which a server has to be ready."""
LATE_S = 10.0
"""Seconds, beyond those in which a server has to be ready or to drain, after which it is aborted."""


class ServedOrder(msgspec.Struct, frozen=True):
    """The order to a server under load."""

    settings: ServerSettings
    workers: int
    parent: int


class ServedNews(msgspec.Struct, frozen=True):
    """The message that the server is ready, or why it cannot be."""

    port: int = 0
    failure: str | None = None


_ORDER = msgspec.json.Decoder(ServedOrder)
_NEWS = msgspec.json.Decoder(ServedNews)


class LoadedServer:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self._process, self.port = process, port

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes so far."""
        return sum(map(cpu_seconds_of, self._processes()))

    def private_bytes(self) -> int:
        """Return the memory that all processes have for themselves: without the rows, which are mapped files."""
        return sum(map(_private_bytes, self._processes()))

    def require_alive(self) -> None:
        """Raise RoleError if the server has ended."""
        code = self._process.poll()
        if code is not None:
            raise RoleError(f"the server ended with exit code {code} while it was loaded; see what it wrote above")

    def _processes(self) -> list[int]:
        """Return the server and its workers."""
        pid = self._process.pid
        try:
            return [pid, *(int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        except (FileNotFoundError, ProcessLookupError):
            return []


@contextmanager
def served(settings: ServerSettings, workers: int) -> Iterator[LoadedServer]:
    """Serve a model until the end of the block; raises UserError, RoleError if it cannot be."""
    process = subprocess.Popen(
        python_module("persia_cli.bench.load.server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C of a terminal is for the benchmark, which ends this process
    )  # fmt: skip
    try:
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(msgspec.json.encode(ServedOrder(settings, workers, os.getpid())))
        yield LoadedServer(process, _port(process))
    finally:
        process.terminate()
        try:
            process.wait(FINISH_S + LATE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _port(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(START_S + LATE_S):
            raise RoleError(f"the server is not ready after {START_S + LATE_S:g} s")
    line = process.stdout.readline()
    if not line:
        raise RoleError(
            f"the server ended with exit code {process.wait()} before it was ready; see what it wrote above"
        )
    news = _NEWS.decode(line)
    if news.failure is not None:
        raise UserError(news.failure)
    return news.port


def _private_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def _tell(news: ServedNews) -> None:
    os.write(1, msgspec.json.encode(news) + b"\n")


def main() -> None:
    """Serve as standard input says, until SIGTERM."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s server %(levelname)s %(message)s")
    order = _ORDER.decode(sys.stdin.buffer.read())
    die_with(order.parent)
    try:
        with bound(HOST, 0, is_guarded=False) as listener:
            port = listener.getsockname()[1]
            serve(order.settings, listener, order.workers, lambda: _tell(ServedNews(port)))
    except PersiaError as error:
        _tell(ServedNews(failure=str(error)))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

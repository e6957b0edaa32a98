"""The processes of a server: uvicorn starts the workers, and replaces those that die or hang."""

import http.client
import os
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvicorn

from persia_cli.disk import own_folder
from persia_cli.errors import RoleError, UserError
from persia_cli.serving.description import digest_of
from persia_cli.serving.http.listening import Address
from persia_cli.serving.http.settings import (
    DRAIN_S,
    FAILED,
    IDLE_S,
    MAX_CONNECTIONS,
    SETTINGS,
    SHARED,
    ServerSettings,
)

if TYPE_CHECKING:
    from persia_cli.serving.http.metrics import LogCounts

PREFIX = "persia-serve-"
"""Name of the folder of counters, in that of temporary files."""
LOOK_S = 0.1
"""Seconds between two checks for a worker that is ready, or has failed."""


def serve(settings: ServerSettings, address: Address, workers: int, on_ready: Callable[[], None]) -> "LogCounts":
    """Serve until SIGTERM or Ctrl-C; another thread calls `on_ready` once a worker is. Returns the counts of the log.

    A single worker is this process itself. Raises PersiaError if a worker cannot begin, also later.
    """
    settings = msgspec.structs.replace(settings, model=digest_of(Path(settings.folder)))
    certificate, key = settings.tls or (None, None)
    with _counters_folder() as folder, _signals():
        os.environ |= {SHARED: str(folder), SETTINGS: msgspec.json.encode(settings).decode()}
        watch = _ReadyWatch(address, certificate is not None, folder / FAILED, on_ready)
        try:
            uvicorn.run(
                "persia_cli.serving.http.worker:create", factory=True, host=address.host, port=address.port,
                workers=workers, lifespan="on", ws="none", log_config=None, access_log=False, server_header=False,
                proxy_headers=False, limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=DRAIN_S, ssl_certfile=certificate, ssl_keyfile=key,
            )  # fmt: skip
        except SystemExit:  # of the only worker
            if not watch.failed.exists():
                raise
        finally:
            watch.close()
        watch.require_none_failed()
        from persia_cli.serving.http.metrics import log_counts  # which reads the environment when it is imported

        return log_counts(str(folder))


class _ReadyWatch:
    """A thread that notices when a worker is ready, and ends the server if one has failed."""

    def __init__(self, address: Address, is_encrypted: bool, failed: Path, on_ready: Callable[[], None]) -> None:
        self.failed = failed
        self._address, self._is_encrypted, self._on_ready = address, is_encrypted, on_ready
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()
        self._thread.join()

    def require_none_failed(self) -> None:
        """Raise the error of a worker that could not begin."""
        if not self.failed.exists():
            return
        code, _, sentence = self.failed.read_text().partition(" ")
        raise (UserError if code == str(UserError.exit_code) else RoleError)(sentence)

    def _run(self) -> None:
        is_ready = False
        while not self._is_over.wait(LOOK_S):
            if self.failed.exists():
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if not is_ready and self._answers():
                is_ready = True
                self._on_ready()

    def _answers(self) -> bool:
        """Return True if a worker answers. The certificate is not checked, since it need not name this address."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._address.host, self._address.host)
        connection = http.client.HTTPConnection(host, self._address.port, timeout=1.0)
        if self._is_encrypted:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(host, self._address.port, timeout=1.0, context=context)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@contextmanager
def _counters_folder() -> Iterator[Path]:
    """Yield a new folder for files of counters; raises UserError."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(own_folder(PREFIX))
        except OSError as error:
            raise UserError(
                f"counters of the server need a place: {error}; name a folder for them as TMPDIR"
            ) from error
        yield folder


@contextmanager
def _signals() -> Iterator[None]:
    """Ignore signals in the block, since uvicorn raises them again after it has handled them."""
    before = {number: signal.signal(number, _do_nothing) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _do_nothing(*of_signal: object) -> None:
    pass

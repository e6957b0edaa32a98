"""A worker of a server: it opens and tests the model, then answers requests until its parent asks it to end."""

import asyncio
import gc
import logging
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from persia_cli.errors import PersiaError, UserError
from persia_cli.kernels.serving.unpack import unpack
from persia_cli.serving.description import digest_of
from persia_cli.serving.following import folder_of
from persia_cli.serving.golden import require_golden
from persia_cli.serving.http.admission import TokenFile
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.connections import Acceptor, BoundedProtocol
from persia_cli.serving.http.metrics import ServingMetrics
from persia_cli.serving.http.settings import FINISH_S, IDLE_S, LOG_S, ServerSettings, WorkerFailed, WorkerReady
from persia_cli.serving.http.shared import ServerMemory
from persia_cli.serving.predictor import Predictor

if TYPE_CHECKING:
    from persia_cli.serving.http.request_log import RequestLog

FOLLOW_S, AGAIN_S = 0.1, 1.0
"""Seconds between two looks for another version, and after one that could not be opened."""
SWITCH_S = 0.0005
"""Seconds after which the thread that opens a version lets requests go on, which are ten times shorter."""
log = logging.getLogger(__name__)


def run(settings: ServerSettings, listener: socket.socket, memory: ServerMemory, part: int, parent: Connection) -> None:
    """Send `WorkerReady` and serve until the parent closes the connection or dies; or send `WorkerFailed` and end."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s worker %(process)d %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )  # fmt: skip
    # Otherwise uvicorn logs a line for each invalid request, and for each connection beyond the bound.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    metrics = ServingMetrics(memory, part)
    sys.setswitchinterval(SWITCH_S)
    try:
        app, request_log, ready = _opened(settings, metrics, memory, part)
    except Exception as error:
        if not isinstance(error, PersiaError):
            log.error("a worker cannot begin", exc_info=error)
        parent.send(WorkerFailed(error.exit_code if isinstance(error, PersiaError) else 1, str(error)))
        sys.exit(1)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_WorkerServer(app, settings, listener, memory, part, parent, ready).serve())
    finally:
        if request_log is not None:
            request_log.close(LOG_S)


def _opened(
    settings: ServerSettings, metrics: ServingMetrics, memory: ServerMemory, part: int
) -> tuple[ServingApp, "RequestLog | None", WorkerReady]:
    token = None if settings.token_file is None else TokenFile(Path(settings.token_file))
    if settings.source is None:
        folder = Path(settings.folder).resolve()
        model = digest_of(folder)
        predictor = Predictor.open(folder, settings.missing)
        require_golden(predictor)
        if digest_of(folder) != model:
            raise UserError(f"{settings.folder} was replaced while a worker opened it")
    else:
        model = ""
        number, predictor = _newest(settings, memory, None)
        memory.serve_version(part, number, predictor.description.version or 0)
    unpack.compile()  # which golden samples do not need
    request_log = None
    if settings.log is not None:
        from persia_cli.serving.http.request_log import RequestLog, Rotation

        rotation = Rotation(seconds=settings.log_every_s)
        request_log = RequestLog(Path(settings.log), predictor, settings.sample, metrics, rotation)
    app = ServingApp(predictor, settings, token, metrics, request_log, lambda: memory.is_ending, memory.lag_s)
    app.warm_up()
    # Loaded objects stay, so no collection needs to visit them again.
    gc.collect()
    gc.freeze()
    # A full collection runs when new objects exceed a quarter of those that the last one found; this one finds few.
    gc.collect()
    description = predictor.description
    version = "" if description.version is None else f"version {description.version}, "
    return app, request_log, WorkerReady(model, f"{description.name}, {version}step {description.step:,}")


def _newest(settings: ServerSettings, memory: ServerMemory, before: Predictor | None) -> tuple[int, Predictor]:
    """Return the prepared version that is to be served, and its number; raises CheckpointError.

    It has passed its checks, and predicts its golden samples again, so that no request meets anything for the first
    time.
    """
    while True:
        number = memory.wanted()
        try:
            predictor = Predictor.open(folder_of(Path(settings.folder), number), settings.missing, before=before)
            require_golden(predictor)
            return number, predictor
        except PersiaError:
            if memory.wanted() == number:
                raise


class _WorkerServer(uvicorn.Server):
    """uvicorn's server, with connections of a listener that it shares with other workers."""

    def __init__(
        self, app: ServingApp, settings: ServerSettings, listener: socket.socket, memory: ServerMemory, part: int,
        parent: Connection, ready: WorkerReady,
    ) -> None:  # fmt: skip
        certificate, key = settings.tls or (None, None)
        super().__init__(uvicorn.Config(
            app, http=BoundedProtocol, lifespan="off", ws="none", log_config=None, access_log=False,
            server_header=False, proxy_headers=False,
            limit_concurrency=settings.most_connections + 1,  # so many are too many
            timeout_keep_alive=IDLE_S, timeout_graceful_shutdown=FINISH_S, ssl_certfile=certificate, ssl_keyfile=key,
            callback_notify=self._beat, timeout_notify=1,
        ))  # fmt: skip
        self._settings, self._listener, self._memory, self._part = settings, listener, memory, part
        self._parent, self._ready = parent, ready
        self._app = app
        self._following: asyncio.Task[None] | None = None
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets=[])
        self._acceptor = Acceptor(
            self._listener, lambda: BoundedProtocol(self.config, self.server_state, {}), self.config.ssl,
            self._settings.most_connections, self.server_state.connections, self._memory, self._part,
        )  # fmt: skip
        asyncio.get_running_loop().add_reader(self._parent.fileno(), self._end)
        if self._settings.source is not None:
            self._following = asyncio.create_task(self._follow())
        self._parent.send(self._ready)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and finish the requests."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        if self._following is not None:
            self._following.cancel()
        await super().shutdown()

    async def _follow(self) -> None:
        """Exchange the model whenever another version is to be served.

        The next one is opened, and the last one given back, on a thread: both take milliseconds.
        """
        failure = ""
        while True:
            await asyncio.sleep(FOLLOW_S)
            if self._memory.wanted() == self._memory.prepared(self._part):
                continue
            try:
                number, following = await asyncio.to_thread(
                    _newest, self._settings, self._memory, self._app.predictor
                )  # fmt: skip
            except PersiaError as error:
                if str(error) != failure:
                    failure = str(error)
                    log.error("the next version cannot be opened, and the one before is served on: %s", failure)
                await asyncio.sleep(AGAIN_S)
                continue
            before, self._app.predictor = [self._app.predictor], following
            self._memory.serve_version(self._part, number, following.description.version or 0)
            failure = ""
            await asyncio.to_thread(before.clear)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._parent.fileno())
        self.should_exit = True

    async def _beat(self) -> None:
        self._memory.beats[self._part] += 1
        if self._acceptor is not None:
            self._acceptor.note()

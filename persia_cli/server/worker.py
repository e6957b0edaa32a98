"""A worker of a server: one process that serves the model on the socket that all workers share."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
import uvicorn

from persia_cli.errors import PersiaError, UserError
from persia_cli.kernels.unpack import unpack
from persia_cli.launch.processes import die_with
from persia_cli.server.accepting import Accepting, ConnectionCounts
from persia_cli.server.app import ServingApp
from persia_cli.server.connection import BoundedConnection
from persia_cli.server.figures import ServingFigures
from persia_cli.server.settings import PULSE, PULSE_S, ServerSettings, WorkerNews, WorkerOrder
from persia_cli.server.token_file import TokenFile
from persia_cli.serving.description import digest_of
from persia_cli.serving.golden import require_golden
from persia_cli.serving.predictor import Predictor

if TYPE_CHECKING:
    from persia_cli.server.request_log import RequestLog

IDLE_S = 75
"""Seconds for which a connection without requests stays open."""
_ORDER = msgspec.json.Decoder(WorkerOrder)


class _Server(uvicorn.Server):
    """A server of bounded connections, which tells that it is there, and ends when what it has logged is written."""

    def __init__(
        self, config: uvicorn.Config, app: ServingApp, order: WorkerOrder, news: int, token: TokenFile | None,
        request_log: "RequestLog | None",
    ) -> None:  # fmt: skip
        super().__init__(config)
        self._app, self._order = app, order
        self._news, self._token = news, token
        self._log = request_log
        self._accepting: Accepting | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn's own would take all that come, and wait for a minute until each is encrypted.
        order, connections = self._order, self.server_state.connections
        counts = ConnectionCounts(order.connections, order.workers)
        for listener in sockets or []:
            self._accepting = Accepting(
                listener, self.config.ssl, self._connection, counts, order.number, lambda: len(connections)
            )  # fmt: skip
        self.servers, self.started = [], True
        _tell(self._news, WorkerNews())
        os.set_blocking(self._news, False)
        self._pulse()

    def _pulse(self) -> None:
        """Tell that the event loop goes round, and that no computation beside it is stuck.

        A parent that does not listen, since it is stopped, misses nothing.
        """
        if self._app.stuck_s() < PULSE_S:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._news, PULSE)
        if self._token is not None:
            self._token.look()
        asyncio.get_running_loop().call_later(PULSE_S, self._pulse)

    def _connection(self) -> BoundedConnection:
        accepting = self._accepting
        assert accepting is not None
        return BoundedConnection(
            self._app, accepting.note, config=self.config, server_state=self.server_state, app_state={}
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.close()
        await super().shutdown(sockets)
        # Behind this uvicorn sends the signal once more, which ends the process.
        if self._log is not None:
            self._log.close(self._order.settings.log_s)


def serve(order: WorkerOrder, news: int) -> None:
    """Serve until SIGTERM, and tell `news` when it begins; raises PersiaError for a model that cannot be served."""
    settings = order.settings
    token = None if settings.token_file is None else TokenFile(Path(settings.token_file))
    predictor = Predictor.open(settings.folder, settings.missing)
    require_golden(predictor)
    unpack.compile()  # which golden samples do not need
    if digest_of(predictor.folder) != order.model:
        raise UserError(
            f"{predictor.folder} is another model now than when this server began; start persia serve again for it"
        )
    figures = ServingFigures()
    if order.after is not None:
        figures.restarts.labels(order.after).inc()
    request_log = _request_log(settings, predictor, figures)
    app = ServingApp(predictor, settings, token, figures, request_log)
    app.warm_up()
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=settings.drain_s,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    # What is loaded stays, and need not be looked at again at each collection.
    gc.collect()
    gc.freeze()
    # Python looks at old objects again when a quarter as many came as it found the last time; now that is few.
    gc.collect()
    _Server(config, app, order, news, token, request_log).run([socket.socket(fileno=order.listener)])


def _request_log(settings: ServerSettings, predictor: Predictor, figures: ServingFigures) -> "RequestLog | None":
    if settings.log is None:
        return None
    from persia_cli.server.request_log import RequestLog

    return RequestLog(Path(settings.log), predictor, settings.sample, figures)


def _tell(news: int, what: WorkerNews) -> None:
    with suppress(BrokenPipeError):  # the parent has died
        os.write(news, msgspec.json.encode(what) + b"\n")


def _end(number: int, frame: FrameType | None) -> None:
    # Of a worker that does not listen yet. Later uvicorn drains at the signal, and then sends it once more. There is
    # nothing to write or close, and an exception could come in the middle of an import.
    os._exit(0)


def main() -> None:
    """Run the worker that standard input describes."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s worker %(process)d %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )  # fmt: skip
    # Of each request that is none, uvicorn would write a line.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    # News alone go to the parent, whatever a library may print.
    news = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _end)
    # Ctrl-C goes to all processes of a terminal, and the parent alone decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    text = sys.stdin.buffer.read()
    if not text:
        sys.exit("the parent of this worker has died before it gave an order")
    order = _ORDER.decode(text)
    try:
        die_with(order.parent)
        serve(order, news)
    except PersiaError as error:
        _tell(news, WorkerNews(str(error), isinstance(error, UserError)))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

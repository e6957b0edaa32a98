"""A worker of a server: one process that serves the model on the socket that all workers share."""

import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn

from persia_cli.errors import PersiaError, UserError
from persia_cli.launch.parent import die_with
from persia_cli.server.app import ServingApp
from persia_cli.server.settings import WorkerNews, WorkerOrder
from persia_cli.serving.golden import require_golden
from persia_cli.serving.predictor import Predictor
from persia_cli.wire.private_file import read_private

IDLE_S = 75
"""Seconds for which a connection without requests stays open."""
_ORDER = msgspec.json.Decoder(WorkerOrder)


class _Server(uvicorn.Server):
    """A server that tells when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _tell(WorkerNews())


def serve(order: WorkerOrder) -> None:
    """Serve until SIGTERM; raises PersiaError for a model that cannot be served."""
    settings = order.settings
    token = None if settings.token_file is None else read_private(Path(settings.token_file), "the token of requests")
    predictor = Predictor.open(settings.folder, settings.missing)
    require_golden(predictor)
    config = uvicorn.Config(
        ServingApp(predictor, settings, token),
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
    _Server(config).run([socket.socket(fileno=order.listener)])


def _tell(news: WorkerNews) -> None:
    os.write(1, msgspec.json.encode(news) + b"\n")


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
    signal.signal(signal.SIGTERM, _end)
    # Ctrl-C goes to all processes of a terminal, and the parent alone decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = _ORDER.decode(sys.stdin.buffer.read())
    die_with(order.parent)
    try:
        serve(order)
    except PersiaError as error:
        _tell(WorkerNews(str(error), isinstance(error, UserError)))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

"""A worker of a server, as uvicorn starts it: the model is opened and tested before the first connection."""

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from persia_cli.errors import PersiaError, UserError
from persia_cli.kernels.unpack import unpack
from persia_cli.serving.description import digest_of
from persia_cli.serving.golden import require_golden
from persia_cli.serving.http.app import Message, Receive, Send, ServingApp
from persia_cli.serving.http.metrics import ServingMetrics
from persia_cli.serving.http.settings import FAILED, LOG_S, SETTINGS, SHARED, ServerSettings
from persia_cli.serving.http.token_file import TokenFile
from persia_cli.serving.predictor import Predictor

if TYPE_CHECKING:
    from persia_cli.serving.http.request_log import RequestLog

log = logging.getLogger(__name__)
_SETTINGS = msgspec.json.Decoder(ServerSettings)


class _Worker:
    """The application from the start to the end of its process (ASGI's lifespan)."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._app: ServingApp | None = None
        self._log: RequestLog | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or begin and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        _end_with_parent()
        try:
            self._open()
        except Exception as error:
            code = error.exit_code if isinstance(error, PersiaError) else 1
            (Path(os.environ[SHARED]) / FAILED).write_text(f"{code} {error}")
            if not isinstance(error, PersiaError):
                log.error("a worker cannot begin", exc_info=error)
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._log is not None:
            self._log.close(LOG_S)
        await send({"type": "lifespan.shutdown.complete"})

    def _open(self) -> None:
        settings = self._settings
        token = None if settings.token_file is None else TokenFile(Path(settings.token_file))
        predictor = Predictor.open(settings.folder, settings.missing)
        require_golden(predictor)
        unpack.compile()  # which golden samples do not need
        if settings.model not in (None, digest_of(predictor.folder)):
            raise UserError(
                f"{predictor.folder} is another model now than when this server began; start persia serve again for it"
            )
        metrics = ServingMetrics()
        if settings.log is not None:
            from persia_cli.serving.http.request_log import RequestLog

            self._log = RequestLog(Path(settings.log), predictor, settings.sample, metrics)
        self._app = ServingApp(predictor, settings, token, metrics, self._log)
        self._app.warm_up()
        # Loaded objects stay, so no collection needs to visit them again.
        gc.collect()
        gc.freeze()
        # A full collection runs when new objects exceed a quarter of those that the last one found; this one finds few.
        gc.collect()


def create() -> _Worker:
    """Return the application that the environment describes."""
    if multiprocessing.parent_process() is not None:
        logging.basicConfig(
            stream=sys.stderr, level=logging.WARNING, format="%(asctime)s worker %(process)d %(levelname)s %(message)s",
            datefmt="%H:%M:%S",
        )  # fmt: skip
    # Otherwise uvicorn logs a line for each invalid request, and for each connection beyond the bound.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return _Worker(_SETTINGS.decode(os.environ[SETTINGS]))


def _end_with_parent() -> None:
    """Make uvicorn end this process when its parent has ended, also by SIGKILL."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    loop, sentinel = asyncio.get_running_loop(), parent.sentinel

    def end() -> None:
        loop.remove_reader(sentinel)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(sentinel, end)

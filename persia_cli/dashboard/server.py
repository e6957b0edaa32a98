"""The server of the dashboard: uvicorn in this process, until Ctrl-C."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from persia_cli.dashboard.guard import App
from persia_cli.serving.http.listening import Address

if TYPE_CHECKING:
    import uvicorn

END_S = 1
"""Seconds that open pages have at the end; their streams would never end."""


def server_of(app: App) -> "uvicorn.Server":
    """Return a server that does not listen yet."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=END_S,
        )
    )  # fmt: skip


def serve(app: App, address: Address, on_ready: Callable[[], None]) -> None:
    """Answer requests until a signal; `on_ready` is called when connections are accepted."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.create_server(address, family=family, backlog=128) as listener:
        on_ready()
        server_of(app).run(sockets=[listener])

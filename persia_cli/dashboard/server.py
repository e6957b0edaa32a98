"""The server of the dashboard: uvicorn in this process, until Ctrl-C."""

from typing import TYPE_CHECKING

from persia_cli.dashboard.app import make_app
from persia_cli.dashboard.folder import Folder
from persia_cli.dashboard.guard import App
from persia_cli.serving.http.token_file import TokenFile

if TYPE_CHECKING:
    import uvicorn

END_S = 3
"""Seconds that answers have at the end; streams notice it within a part of a second."""


def server_of(folder: Folder, token: TokenFile | None) -> "uvicorn.Server":
    """Return a server of the pages over a folder that does not listen yet."""
    import uvicorn

    def app() -> App:
        return make_app(folder, token, lambda: server.should_exit)

    settings = uvicorn.Config(
        app, factory=True, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
        timeout_graceful_shutdown=END_S,
    )  # fmt: skip
    server = uvicorn.Server(settings)
    return server

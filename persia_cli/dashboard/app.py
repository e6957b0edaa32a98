"""The server of the dashboard: pages, their data as JSON, and what changes as server-sent events."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persia_cli.dashboard.curves import MAX_POINTS, new_curves
from persia_cli.dashboard.details import comparison, run_details, to_json
from persia_cli.dashboard.folder import Folder
from persia_cli.dashboard.guard import App, Guard
from persia_cli.dashboard.logs import search
from persia_cli.dashboard.panels import panels
from persia_cli.dashboard.rows import RunRow, read_row
from persia_cli.dashboard.sweep import sweep_details, sweep_row
from persia_cli.errors import UserError
from persia_cli.serving.http.admission import TokenFile
from persia_cli.serving.http.settings import MAX_CONNECTIONS

if TYPE_CHECKING:
    import uvicorn
    from starlette.datastructures import QueryParams
    from starlette.requests import Request

STATIC = Path(__file__).with_name("static")
PAGES = ("/", "/run", "/compare", "/sweep")
TICK_S = 1.0
REST_TIMES = 100.0
"""Files are read again after so many times the time that reading them took, so that training is not slowed."""
END_S = 3
"""Seconds that answers have at the end; streams notice it within a part of a second."""
MIN_POINTS = 300
"""Minimum number of points of a curve, if a page has many runs."""


def server_of(folder: Folder, token: TokenFile | None, host: str) -> "uvicorn.Server":
    """Return a server of the pages over a folder that does not listen yet; its streams end when it does."""
    import uvicorn

    from persia_cli.serving.http.connections import BoundedProtocol

    settings = uvicorn.Config(
        lambda: _app(folder, token, host, lambda: server.should_exit),
        factory=True,
        http=BoundedProtocol,
        limit_concurrency=MAX_CONNECTIONS,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=END_S,
    )
    server = uvicorn.Server(settings)
    return server


def _app(folder: Folder, token: TokenFile | None, host: str, is_ending: Callable[[], bool]) -> App:
    from starlette.applications import Starlette
    from starlette.responses import FileResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    def page(request: "Request") -> Response:
        return FileResponse(STATIC / "page.html")

    def missing(request: "Request", error: Exception) -> Response:
        return Response(to_json({"error": str(error)}), 404, media_type="application/json")

    def data(name: str, make: "Callable[[QueryParams], Any]") -> Route:
        def answer(request: "Request") -> Response:
            return Response(to_json(make(request.query_params)), media_type="application/json")

        return Route(f"/api/{name}", answer)

    def stream(make: Callable[[Folder, "Request"], Callable[[], list[bytes]]]) -> Route:
        def answer(request: "Request") -> Response:
            return StreamingResponse(_events(make(folder, request), is_ending), media_type="text/event-stream")

        return Route(f"/api/{make.__name__}", answer)

    routes = [
        *(Route(path, page) for path in PAGES),
        data("panels", lambda query: panels()),
        data("run", lambda query: run_details(folder, query.get("run", ""))),
        data("logs", lambda query: search(folder, query.get("run", ""), query.get("file", ""), query.get("text", ""))),
        data("compare", lambda query: comparison(folder, _runs(query))),
        data("sweep", lambda query: sweep_details(folder, query.get("sweep", ""))),
        *map(stream, (rows, curves)),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={UserError: missing}), token, host)


def rows(folder: Folder, request: "Request") -> Callable[[], list[bytes]]:
    """Return a function that returns events: the rows of runs that changed, of all or of a sweep, and the sweeps."""
    sweep_name = request.query_params.get("sweep")
    sent: dict[str, RunRow] = {}
    before: list[Any] | None = None

    def changes() -> list[bytes]:
        nonlocal before
        now = time.time()
        found = {name: read_row(folder, name, now) for name in folder.runs(sweep_name)}
        sweeps = [] if sweep_name is not None else [sweep_row(folder, name) for name in folder.sweeps()]
        new = [row for name, row in found.items() if sent.get(name) != row]
        gone = sorted(sent.keys() - found.keys())
        if not new and not gone and sweeps == before:
            return []
        before = sweeps
        sent.clear()
        sent.update(found)
        return [_event("rows", {"rows": new, "gone": gone, "sweeps": sweeps, "folder": str(folder.root)})]

    return changes


def curves(folder: Folder, request: "Request") -> Callable[[], list[bytes]]:
    """Return a function that returns events: new lines of metrics of runs, and their states.

    The id of an event is the positions in the files of metrics, from which a browser continues.
    """
    names = _runs(request.query_params)
    for name in names:
        folder.run(name)
    given = request.headers.get("last-event-id", request.query_params.get("since", "")).split(",")
    since = given if len(given) == len(names) else [""] * len(names)
    states: dict[str, RunRow] = {}

    def changes() -> list[bytes]:
        events = []
        for number, name in enumerate(names):
            most = max(MIN_POINTS, MAX_POINTS // len(names))
            splits, is_whole, at = new_curves(folder.run(name), since[number], most)
            if at != since[number]:
                since[number] = at
                events.append(_event("curves", {"run": name, "all": is_whole, "splits": splits}, ",".join(since)))
            if states.get(name) != (state := read_row(folder, name, time.time())):
                states[name] = state
                events.append(_event("state", state))
        return events

    return changes


def _runs(query: "QueryParams") -> list[str]:
    names = list(dict.fromkeys(query.getlist("run")))
    if not names:
        raise UserError("the address names no run")
    return names


async def _events(changes: Callable[[], list[bytes]], is_ending: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the events that a function returns, again and again, until it raises UserError or the server ends."""
    while not is_ending():
        begin = time.monotonic()
        try:
            found = await asyncio.to_thread(changes)
        except UserError as error:
            yield _event("gone", {"text": str(error)})
            return
        yield b"".join(found) or b": \n\n"
        end = time.monotonic() + max(TICK_S, REST_TIMES * (time.monotonic() - begin))
        while time.monotonic() < end and not is_ending():
            await asyncio.sleep(TICK_S / 4)


def _event(kind: str, value: Any, name: str = "") -> bytes:
    """Return a server-sent event; JSON has no line breaks."""
    head = f"id: {name}\nevent: {kind}\ndata: " if name else f"event: {kind}\ndata: "
    return head.encode() + to_json(value) + b"\n\n"

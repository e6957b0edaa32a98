"""The web application: pages, their data as JSON, and what changes as server-sent events."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from persia_cli.config.schema.metric import AIMS
from persia_cli.dashboard.details import comparison, run_details, sweep_details, sweep_row
from persia_cli.dashboard.folder import Folder
from persia_cli.dashboard.guard import App, Guard
from persia_cli.dashboard.lines import Position, columns, read_new
from persia_cli.dashboard.logs import search
from persia_cli.dashboard.overview import Overview
from persia_cli.dashboard.rows import RunRow
from persia_cli.errors import UserError
from persia_cli.observe.journal import METRICS
from persia_cli.observe.journal_keys import METRIC_KEYS
from persia_cli.serving.http.token_file import TokenFile

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.responses import Response

STATIC = Path(__file__).with_name("static")
PAGES = ("/", "/run", "/compare", "/sweep")
TICK_S = 1.0
REST_TIMES = 100.0
"""A page's data is read again after so many times the time that reading it took, so that training is not slowed."""
MAX_POINTS, MIN_POINTS = 3000, 300
"""Points of a curve: MAX_POINTS is shared by the runs of a page."""


def make_app(folder: Folder, token: TokenFile | None, is_ending: Callable[[], bool]) -> App:
    """Return the application over a folder, whose streams end when the server does."""
    from starlette.applications import Starlette
    from starlette.responses import FileResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    pages = _Pages(folder, is_ending)

    async def page(request: "Request") -> "Response":
        return FileResponse(STATIC / "page.html")

    async def missing(request: "Request", error: Exception) -> "Response":
        return _json({"error": str(error)}, 404)

    def data(make: Callable[["QueryParams"], Any]) -> Callable[["Request"], Awaitable["Response"]]:
        async def answer(request: "Request") -> "Response":
            return _json(await asyncio.to_thread(make, request.query_params))

        return answer

    made = (pages.keys, pages.run, pages.logs, pages.compare, pages.sweep)
    routes = [
        *(Route(path, page) for path in PAGES),
        *(Route(f"/api/{make.__name__}", data(make)) for make in made),
        *(Route(f"/api/{stream.__name__}", stream) for stream in (pages.rows, pages.curves)),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={UserError: missing}), token)


class _Pages:
    """The data of the pages: as JSON, or as events while it changes."""

    def __init__(self, folder: Folder, is_ending: Callable[[], bool]) -> None:
        self._folder, self._overview, self._is_ending = folder, Overview(folder), is_ending

    def keys(self, query: "QueryParams") -> Any:
        """Return the keys of metrics; curves of evaluations have only those that are `scored`."""
        scored = {key for key, each in METRIC_KEYS.items() if key in ("loss", *AIMS) or each.lines == "eval"}
        return {key: {**each._asdict(), "scored": key in scored} for key, each in METRIC_KEYS.items()}

    def run(self, query: "QueryParams") -> Any:
        """Return the details of a run."""
        return run_details(self._folder.run(query.get("run", "")), query.get("run", ""))

    def logs(self, query: "QueryParams") -> Any:
        """Return the lines of a log that contain a text."""
        return search(self._folder.run(query.get("run", "")), query.get("file", ""), query.get("text", ""))

    def compare(self, query: "QueryParams") -> Any:
        """Return the differences of runs."""
        return comparison(self._runs(query))

    def sweep(self, query: "QueryParams") -> Any:
        """Return the settings of a sweep."""
        return sweep_details(self._folder.sweep(query.get("sweep", "")), query.get("sweep", ""))

    async def rows(self, request: "Request") -> "Response":
        """Answer with events: the rows of runs that change, of all or of a sweep, and the sweeps."""
        return _stream(self._row_events(request.query_params.get("sweep")))

    async def curves(self, request: "Request") -> "Response":
        """Answer with events: new lines of metrics of runs, and their states.

        The id of an event is the positions in the files of metrics, from which a browser continues.
        """
        runs = self._runs(request.query_params)
        texts = request.headers.get("last-event-id", request.query_params.get("since", "")).split(",")
        since = [Position.parse(text) for text in texts] if len(texts) == len(runs) else [Position()] * len(runs)
        return _stream(self._curve_events(list(runs), since))

    def _runs(self, query: "QueryParams") -> dict[str, Path]:
        names = dict.fromkeys(query.getlist("run"))
        if not names:
            raise UserError("the address names no run")
        return {name: self._folder.run(name) for name in names}

    async def _row_events(self, sweep: str | None) -> AsyncIterator[bytes]:
        sent: dict[str, RunRow] = {}
        before: Any = None
        while not self._is_ending():
            begin = time.monotonic()
            try:
                found = await asyncio.to_thread(self._overview.changes, sent, sweep)
                rows = [] if sweep is not None else await asyncio.to_thread(self._sweep_rows)
            except UserError as error:
                yield _event("gone", {"text": str(error)})
                return
            if found["rows"] or found["gone"] or before != (rows, found["unread"]):
                before = rows, found["unread"]
                yield _event("rows", {**found, "sweeps": rows, "folder": str(self._folder.root)})
            else:
                yield b": \n\n"
            if not found["unread"]:
                await self._rest(begin)

    def _sweep_rows(self) -> list[dict[str, Any]]:
        rows = []
        for name in self._folder.sweeps():
            with suppress(UserError):  # removed meanwhile
                rows.append(sweep_row(self._folder.sweep(name), name))
        return rows

    async def _curve_events(self, runs: list[str], since: list[Position]) -> AsyncIterator[bytes]:
        most = max(MIN_POINTS, MAX_POINTS // len(runs))
        states: dict[str, RunRow] = {}
        while not self._is_ending():
            begin = time.monotonic()
            for number, name in enumerate(runs):
                try:
                    new, at = await asyncio.to_thread(self._new, name, since[number], most)
                    state = await asyncio.to_thread(self._overview.row, name, False)
                except UserError as error:
                    yield _event("gone", {"run": name, "text": str(error)})
                    return
                is_other = at.file != since[number].file or at.offset < since[number].offset
                if new or is_other:
                    since[number] = at
                    yield _event("curves", {"run": name, "all": is_other, "splits": new}, ",".join(map(str, since)))
                if states.get(name) != state:
                    states[name] = state
                    yield _event("state", state)
            yield b": \n\n"
            await self._rest(begin)

    async def _rest(self, begin: float) -> None:
        """Wait until the next tick, in proportion to the time since `begin`, or until the server ends."""
        end = time.monotonic() + max(TICK_S, REST_TIMES * (time.monotonic() - begin))
        while time.monotonic() < end and not self._is_ending():
            await asyncio.sleep(TICK_S / 4)

    def _new(self, name: str, since: Position, most: int) -> tuple[Any, Position]:
        data, at = read_new(self._folder.run(name) / METRICS, since)
        return columns(data, most) if data else None, at


def _json(value: Any, status: int = 200) -> "Response":
    from starlette.responses import Response

    return Response(_encoded(value), status, media_type="application/json")


def _stream(events: AsyncIterator[bytes]) -> "Response":
    from starlette.responses import StreamingResponse

    return StreamingResponse(events, media_type="text/event-stream")


def _event(kind: str, value: Any, name: str = "") -> bytes:
    """Return a server-sent event; JSON has no line breaks."""
    head = f"id: {name}\nevent: {kind}\ndata: " if name else f"event: {kind}\ndata: "
    return head.encode() + _encoded(value) + b"\n\n"


def _encoded(value: Any) -> bytes:
    """Return JSON; a name that is not in UTF-8, and other halves of characters, are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()

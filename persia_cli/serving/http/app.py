"""The application, in ASGI version 3: HTTP requests in, predictions out.

Bodies are decompressed as they arrive, within the bound of their size. The model computes one request at a time.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from persia_cli.errors import DataError
from persia_cli.serving.columns import WHERE
from persia_cli.serving.description import ModelDescription
from persia_cli.serving.golden import example_row, read_golden
from persia_cli.serving.http import answers
from persia_cli.serving.http.admission import TokenFile, require_own_page
from persia_cli.serving.http.answers import HttpAnswer, header_pairs
from persia_cli.serving.http.metrics import KIND, ServingMetrics
from persia_cli.serving.http.refused import CLOSE, DisconnectedError, RefusedRequestError, bad
from persia_cli.serving.http.requests import PredictionRequest, RequestReader
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictions, Predictor

if TYPE_CHECKING:
    from persia_cli.serving.http.request_log import RequestLog
import base64
import hashlib
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from persia_cli.errors import count
from persia_cli.serving.http.refused import busy

PAGE = Path(__file__).with_name("page.html")


def page() -> HttpAnswer:
    """Return the page. A browser runs its one script, and connects to this server only."""
    text = PAGE.read_text(encoding="utf-8")
    rules = [
        "default-src 'none'",
        f"script-src {_digest(text, 'script')}",
        f"style-src {_digest(text, 'style')}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
    headers = {
        "content-security-policy": "; ".join(rules),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }
    return HttpAnswer(200, text.encode(), "text/html; charset=utf-8", headers)


def _digest(text: str, tag: str) -> str:
    [content] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


T = TypeVar("T")


class Turns:
    """A queue of bounded length. Work runs on the event loop, which sends each answer before the next work begins."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._lock = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """True if one more request would be refused."""
        return self._held >= self._most

    def refusal(self) -> RefusedRequestError:
        """Return the refusal of a request for which there is no place."""
        return busy(f"the server has {count(self._most, 'request')} at work or waiting already; try again later")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Occupy a place for a request from its arrival on; raises RefusedRequestError if there is none."""
        if self.is_full:
            raise self.refusal()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def turn(self, until: float, work: Callable[[], T]) -> T:
        """Return the result of `work` when its turn comes; raises RefusedRequestError if that is later than `until`."""
        await self._lock.acquire()
        try:
            if time.monotonic() > until:
                raise busy("the request waited for its turn longer than its deadline; try again later")
            return work()
        finally:
            # Not at once, since the caller writes its answer, and the event loop sends that first.
            asyncio.get_running_loop().call_soon(self._lock.release)


PLAIN = b"identity"
COMPRESSED = {b"gzip", b"x-gzip", b"deflate"}
EITHER = zlib.MAX_WBITS | 32
"""The argument of zlib for gzip and deflate, by the first bytes."""


class Body:
    """The bytes of a body. The part beyond the bound is read and dropped, since a client reads no answer before it has
    sent everything."""

    def __init__(self, encoding: bytes, most: int) -> None:
        """`encoding` is the header Content-Encoding; raises RefusedRequestError for an unknown one."""
        kind = encoding.strip().lower()
        if kind not in {PLAIN, *COMPRESSED}:
            raise RefusedRequestError(
                415, "the body has a Content-Encoding that this server does not read; send gzip, deflate or none",
                {"accept-encoding": "gzip, deflate", **CLOSE},
            )  # fmt: skip
        self._inflater = None if kind == PLAIN else zlib.decompressobj(EITHER)
        self._most, self._size = most, 0
        self._parts: list[bytes] = []
        self._damage = ""

    def add(self, part: bytes) -> None:
        """Add the next bytes from the client; at most one byte beyond the bound is decompressed."""
        if self._size > self._most or self._damage:
            return
        if self._inflater is not None:
            try:
                part = self._inflater.decompress(part, self._most + 1 - self._size)
            except zlib.error as error:
                self._damage = str(error)
                return
        self._size += len(part)
        if self._size <= self._most:
            self._parts.append(part)

    def whole(self) -> bytes:
        """Return all bytes; raises RefusedRequestError for a body that is too large, or not compressed as it says."""
        if self._size > self._most:
            raise RefusedRequestError(413, f"the body is larger than the {self._most:,} bytes that are allowed", CLOSE)
        inflater = self._inflater
        if self._damage or (inflater is not None and (not inflater.eof or inflater.unused_data)):
            raise bad(f"the body cannot be decompressed: {self._damage or 'it does not end where its content does'}")
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = dict[bytes, bytes]
HEADER_LENGTH = b"inference-header-content-length"
REQUEST_ID = b"x-request-id"
LONGEST_ID = 200
"""Maximum number of characters of an id in that header, or of a logged request; a longer one is not used."""


class _Route(NamedTuple):
    """The handler of a path: a name for metrics, and the answer, at once or by work of the model."""

    name: str
    answer: Callable[[], HttpAnswer] | None = None
    work: Callable[[bytes, Headers], HttpAnswer] | None = None
    """Computes the answer to a POST when its turn comes."""
    is_open: bool = False
    """True if it answers without the token."""

    @property
    def method(self) -> str:
        """The HTTP method of its requests."""
        return "GET" if self.work is None else "POST"


class ServingApp:
    """Serves one model, or its versions one after another; used by one event loop."""

    def __init__(
        self, predictor: Predictor, settings: ServerSettings, token: TokenFile | None = None,
        metrics: ServingMetrics | None = None, request_log: "RequestLog | None" = None,
        is_ending: Callable[[], bool] = lambda: False, lag_s: Callable[[], float | None] = lambda: None,
    ) -> None:  # fmt: skip
        """`token` returns the token that requests must have in the header Authorization, as `Bearer TOKEN`.

        While `is_ending` returns True the server is not ready, and each answer closes its connection. It is not ready
        either while `lag_s` returns more than `max_lag_s` of the settings.
        """
        self.metrics = metrics or ServingMetrics()
        self._log, self._is_ending, self._lag_s = request_log, is_ending, lag_s
        self.predictor, self._settings = predictor, settings
        """May be replaced between two requests by another version, of the same name, inputs and outputs."""
        self._token = token
        self._reader = RequestReader(self._model.inputs, self._model.outputs, settings.most_samples)
        self._turns = Turns(settings.most_requests)
        self._full = answers.refusal(self._turns.refusal())
        live = answers.in_json({"live": True})
        about, config = answers.server_metadata(), answers.model_config(self._model)
        known, test_page = answers.in_json({"models": [self._model.name]}), page()
        row = example_row(predictor.fields, read_golden(predictor.folder, self._model))
        self._example = answers.in_json({"instances": [row]})  # while the folder has this model
        self._model_routes = {
            ("v2", ""): _Route("model", lambda: answers.model_metadata(self._model)),
            ("v2", "/ready"): _Route("model_ready", lambda: self._ready(name=self._model.name)),
            ("v2", "/config"): _Route("config", lambda: config),
            ("v2", "/stats"): _Route("stats", lambda: answers.model_stats(self._model, self.metrics.inferences())),
            ("v2", "/example"): _Route("example", lambda: self._example),
            ("v2", "/infer"): _Route("infer", work=self._infer),
            ("v1", ""): _Route("status", lambda: answers.model_status(self._model)),
            ("v1", ":predict"): _Route("predict", work=self._predict),
        }
        self._routes = {
            "": _Route("page", lambda: test_page, is_open=True),
            "/v1/models": _Route("models", lambda: known),
            "/v2": _Route("server", lambda: about),
            "/v2/health/live": _Route("live", lambda: live, is_open=True),
            "/v2/health/ready": _Route("ready", self._ready, is_open=True),
            "/metrics": _Route("metrics", lambda: HttpAnswer(200, self.metrics.text(), KIND)),
            **{
                f"/{version}/models/{self._model.name}{end}": route
                for (version, end), route in self._model_routes.items()
            },
        }

    @property
    def _model(self) -> ModelDescription:
        return self.predictor.description

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        begin, name = time.monotonic(), "none"
        try:
            route = self._route(scope["path"])
            name = route.name
            answer = await self._answered(route, scope, receive, begin + self._settings.deadline_s)
        except DisconnectedError:
            return
        except Exception as error:
            answer = _failure(name, error)
        self.metrics.count_answer(name, answer.status, time.monotonic() - begin)
        if self._is_ending():
            answer = answer._replace(headers={**answer.headers, **CLOSE})
        await send({"type": "http.response.start", "status": answer.status, "headers": header_pairs(answer)})
        await send({"type": "http.response.body", "body": answer.body})

    def warm_up(self) -> None:
        """Read and answer the example, so that no request is the first: modules are loaded when they are needed."""
        try:
            question = self._reader.rows(self._example.body)
            self.predictor.predict(self.predictor.fields.batch(question.columns))
        except (DataError, RefusedRequestError) as error:
            log.debug("the example is refused: %s", error)

    def _route(self, path: str) -> _Route:
        path = path.rstrip("/")
        if path in self._routes:
            return self._routes[path]
        version, _, rest = path.removeprefix("/").partition("/models/")
        if version not in ("v1", "v2") or not rest:
            raise RefusedRequestError(404, f"there is nothing at {path[:100]!r}; GET /v2 describes this server")
        address, colon, verb = rest.rpartition(":") if version == "v1" and ":" in rest else (rest, "", "")
        name, *steps = address.split("/")
        if name != self._model.name:
            raise RefusedRequestError(404, f"there is no model {name[:100]!r}; this server has {self._model.name}")
        present = answers.version_of(self._model)
        if steps[:1] == ["versions"] and len(steps) > 1:
            if steps[1] != present:
                raise RefusedRequestError(404, f"{name} has no version {steps[1][:100]!r}; this server has {present}")
            steps = steps[2:]
        route = self._model_routes.get((version, "".join(f"/{step}" for step in steps) + colon + verb))
        if route is None:
            ways = ", ".join(f"/{version}/models/{name}{end}" for version, end in self._model_routes)
            raise RefusedRequestError(404, f"there is nothing at {path[:100]!r}; of this model there are {ways}")
        return route

    async def _answered(self, route: _Route, scope: Message, receive: Receive, until: float) -> HttpAnswer:
        headers: Headers = dict(scope["headers"])
        if self._token is None:
            require_own_page(headers, self._settings.host, self._settings.is_near)
        if not route.is_open and not self._is_allowed(headers):
            raise RefusedRequestError(
                401, "this server wants its token, as the header Authorization: Bearer TOKEN",
                {"www-authenticate": "Bearer", **CLOSE},
            )  # fmt: skip
        if scope["method"] != route.method and not (route.method == "GET" and scope["method"] == "HEAD"):
            raise RefusedRequestError(
                405, f"{scope['path'][:100]} is asked by {route.method}, not {scope['method'][:20]}",
                {"allow": route.method, **CLOSE},
            )  # fmt: skip
        if route.answer is not None:
            return route.answer()
        if self._turns.is_full:
            # Before the body is read, since time for refused requests is lost for the others.
            return self._full
        with self._turns.place():
            body = await self._body(receive, headers, until)
            return await self._turns.turn(until, lambda: self._worked(scope["path"], body, headers))

    def _worked(self, path: str, body: bytes, headers: Headers) -> HttpAnswer:
        """Return the answer of the model; a path may name a version, and another may be served by now."""
        work = self._route(path).work
        assert work is not None
        return work(body, headers)

    def _is_allowed(self, headers: Headers) -> bool:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        token = self._token
        return token is None or (scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token.token()))

    async def _body(self, receive: Receive, headers: Headers, until: float) -> bytes:
        """Return the body of a request; raises RefusedRequestError if it is too large, or not there in time."""
        if b"upgrade" in headers:  # uvicorn would pass no body
            raise RefusedRequestError(400, "the request asks for another protocol (Upgrade); ask by HTTP/1.1", CLOSE)
        body = Body(headers.get(b"content-encoding", PLAIN), self._settings.most_bytes)
        try:
            async with asyncio.timeout(until - time.monotonic()):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise DisconnectedError("the client has disconnected")
                    body.add(message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError:
            text = f"the body was not there within {self._settings.deadline_s:g} s; send it faster"
            raise RefusedRequestError(408, text, CLOSE) from None
        return body.whole()

    def _infer(self, body: bytes, headers: Headers) -> HttpAnswer:
        question = self._reader.infer(body, headers.get(HEADER_LENGTH))
        predictions = self._predictions(question)
        return self._noted(question, predictions, body, headers, answers.inferred(self._model, question, predictions))

    def _ready(self, **about: str) -> HttpAnswer:
        most = self._settings.max_lag_s
        is_late = most is not None and (self._lag_s() or 0.0) > most
        is_ready = not (self._is_ending() or is_late)
        return answers.in_json({**about, "ready": is_ready})._replace(status=200 if is_ready else 503)

    def _predict(self, body: bytes, headers: Headers) -> HttpAnswer:
        question = self._reader.rows(body)
        predictions = self._predictions(question)
        return self._noted(question, predictions, body, headers, answers.predicted(self._model, predictions))

    def _predictions(self, question: PredictionRequest) -> Predictions:
        try:
            batch = self.predictor.fields.batch(question.columns)
        except DataError as error:
            raise bad(str(error)) from error
        predictions = self.predictor.predict(batch)
        if not np.isfinite(predictions.values).all():
            row, output = np.argwhere(~np.isfinite(predictions.values))[0].tolist()
            value, name = predictions.values[row, output], self._model.outputs[output].name
            raise RefusedRequestError(
                500, f"model {self._model.name} gives {value} as {name} of {WHERE.place_of(row)}, and that is no "
                "prediction",
            )  # fmt: skip
        self.metrics.samples.inc(batch.size)
        for number in predictions.missing.nonzero()[0]:
            self.metrics.missing.labels(self._model.features[number].name).inc(int(predictions.missing[number]))
        return predictions

    def _noted(
        self, question: PredictionRequest, predictions: Predictions, body: bytes, headers: Headers,
        answer: HttpAnswer,
    ) -> HttpAnswer:  # fmt: skip
        """Log a request if it is in the sample; returns its answer, with the id that it got."""
        if self._log is None:
            return answer
        given = headers.get(REQUEST_ID, b"").decode("latin-1")
        name = (
            given if given.isascii() and given.isprintable() and 0 < len(given) <= LONGEST_ID else secrets.token_hex(16)
        )
        if question.id is not None and len(question.id) <= LONGEST_ID:
            name = question.id
        else:
            answer = answer._replace(headers={**answer.headers, REQUEST_ID.decode(): name})
        if self._log.draw():
            self._log.offer(name, answers.version_of(self._model), question.columns, predictions.values, len(body))
        return answer


def _failure(name: str, error: Exception) -> HttpAnswer:
    """Return the answer to a failed request, and log the error unless it is the request's fault."""
    if not isinstance(error, RefusedRequestError):
        log.error("a request to %s failed", name, exc_info=error)
        error = RefusedRequestError(500, "the server failed at this request; see its log")
    return answers.refusal(error)

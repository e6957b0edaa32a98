"""The application, in ASGI version 3: HTTP requests in, predictions out."""

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
from persia_cli.serving.example import example_row
from persia_cli.serving.golden import read_golden
from persia_cli.serving.http import answers
from persia_cli.serving.http.answers import HttpAnswer, header_pairs
from persia_cli.serving.http.bodies import PLAIN, Body
from persia_cli.serving.http.metrics import KIND, ServingMetrics
from persia_cli.serving.http.own_page import require_own_page
from persia_cli.serving.http.page import page
from persia_cli.serving.http.refused import CLOSE, DisconnectedError, RefusedRequestError, bad
from persia_cli.serving.http.requests import PredictionRequest, RequestReader
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.http.token_file import TokenFile
from persia_cli.serving.http.turns import Turns
from persia_cli.serving.predictor import Predictions, Predictor

if TYPE_CHECKING:
    from persia_cli.serving.http.request_log import RequestLog

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
    """Serves one model; used by one event loop."""

    def __init__(
        self, predictor: Predictor, settings: ServerSettings, token: TokenFile | None = None,
        metrics: ServingMetrics | None = None, request_log: "RequestLog | None" = None,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`token` returns the token that requests must have in the header Authorization, as `Bearer TOKEN`.

        While `is_ending` returns True the server is not ready, and each answer closes its connection.
        """
        self.metrics = metrics or ServingMetrics()
        self._log, self._is_ending = request_log, is_ending
        self._predictor, self._settings = predictor, settings
        self._model = predictor.description
        self._token = token
        self._reader = RequestReader(self._model.inputs, self._model.outputs, settings.most_samples)
        self._turns = Turns(settings.most_requests)
        self._full = answers.refusal(self._turns.refusal())
        live = answers.in_json({"live": True})
        about, model = answers.server_metadata(), answers.model_metadata(self._model)
        status, config = answers.model_status(self._model), answers.model_config(self._model)
        known, test_page = answers.in_json({"models": [self._model.name]}), page()
        row = example_row(predictor.fields, read_golden(predictor.folder, self._model))
        self._example = answers.in_json({"instances": [row]})  # while the folder has this model
        self._model_routes = {
            ("v2", ""): _Route("model", lambda: model),
            ("v2", "/ready"): _Route("model_ready", lambda: self._ready(name=self._model.name)),
            ("v2", "/config"): _Route("config", lambda: config),
            ("v2", "/stats"): _Route("stats", lambda: answers.model_stats(self._model, self.metrics.inferences())),
            ("v2", "/example"): _Route("example", lambda: self._example),
            ("v2", "/infer"): _Route("infer", work=self._infer),
            ("v1", ""): _Route("status", lambda: status),
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
            self._predictor.predict(self._predictor.fields.batch(question.columns))
        except (DataError, RefusedRequestError) as error:
            log.debug("the example is refused: %s", error)

    def _route(self, path: str) -> _Route:
        path = path.rstrip("/")
        if path in self._routes:
            return self._routes[path]
        version, _, rest = path.removeprefix("/").partition("/models/")
        if version not in ("v1", "v2") or not rest:
            raise RefusedRequestError(404, f"there is nothing at {path[:100]!r}; GET /v2 describes this server")
        place, colon, verb = rest.rpartition(":") if version == "v1" and ":" in rest else (rest, "", "")
        name, *steps = place.split("/")
        if name != self._model.name:
            raise RefusedRequestError(404, f"there is no model {name[:100]!r}; this server has {self._model.name}")
        own = answers.version_of(self._model)
        if steps[:1] == ["versions"] and len(steps) > 1:
            if steps[1] != own:
                raise RefusedRequestError(404, f"{name} has no version {steps[1][:100]!r}; this server has {own}")
            steps = steps[2:]
        route = self._model_routes.get((version, "".join(f"/{step}" for step in steps) + colon + verb))
        if route is None:
            ways = ", ".join(f"/{each}/models/{name}{end}" for each, end in self._model_routes)
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
        work = route.work
        assert work is not None
        if self._turns.is_full:
            # Before the body is read, since time for refused requests is lost for the others.
            return self._full
        with self._turns.place():
            body = await self._body(receive, headers, until)
            return await self._turns.turn(until, lambda: work(body, headers))

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
        found = self._predictions(question)
        return self._noted(question, found, body, headers, answers.inferred(self._model, question, found))

    def _ready(self, **about: str) -> HttpAnswer:
        is_ready = not self._is_ending()
        return answers.in_json({**about, "ready": is_ready})._replace(status=200 if is_ready else 503)

    def _predict(self, body: bytes, headers: Headers) -> HttpAnswer:
        question = self._reader.rows(body)
        found = self._predictions(question)
        return self._noted(question, found, body, headers, answers.predicted(self._model, found))

    def _predictions(self, question: PredictionRequest) -> Predictions:
        try:
            batch = self._predictor.fields.batch(question.columns)
        except DataError as error:
            raise bad(str(error)) from error
        found = self._predictor.predict(batch)
        if not np.isfinite(found.values).all():
            row, output = np.argwhere(~np.isfinite(found.values))[0].tolist()
            value, name = found.values[row, output], self._model.outputs[output].name
            raise RefusedRequestError(
                500, f"model {self._model.name} gives {value} as {name} of {WHERE.place_of(row)}, and that is no "
                "prediction",
            )  # fmt: skip
        self.metrics.samples.inc(batch.size)
        for number in found.missing.nonzero()[0]:
            self.metrics.missing.labels(self._model.features[number].name).inc(int(found.missing[number]))
        return found

    def _noted(
        self, question: PredictionRequest, found: Predictions, body: bytes, headers: Headers,
        answer: HttpAnswer,
    ) -> HttpAnswer:  # fmt: skip
        """Log a request if it is in the sample; returns its answer, with the id that it got."""
        if self._log is None:
            return answer
        own = headers.get(REQUEST_ID, b"").decode("latin-1")
        name = own if own.isascii() and own.isprintable() and 0 < len(own) <= LONGEST_ID else secrets.token_hex(16)
        if question.id is not None and len(question.id) <= LONGEST_ID:
            name = question.id
        else:
            answer = answer._replace(headers={**answer.headers, REQUEST_ID.decode(): name})
        if self._log.draw():
            self._log.offer(name, question.columns, found.values, len(body))
        return answer


def _failure(name: str, error: Exception) -> HttpAnswer:
    """Return the answer to a failed request, and log the error unless it is the request's fault."""
    if not isinstance(error, RefusedRequestError):
        log.error("a request to %s failed", name, exc_info=error)
        error = RefusedRequestError(500, "the server failed at this request; see its log")
    return answers.refusal(error)

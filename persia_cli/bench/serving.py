"""`persia bench serve`: a server under load from another process, alternating with its network alone in this one."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from persia_cli.bench.load.order import LoadOrder, LoadReport, percentiles_ms
from persia_cli.bench.load.process import load
from persia_cli.bench.load.requests import Pool, PreparedRequest, RequestForm, pool_of, prepared, user_fields
from persia_cli.bench.load.server import HOST, LoadedServer, served
from persia_cli.bench.result import OURS, Result, Side, with_ratios
from persia_cli.bench.rounds import TurnFigures, side_of, take_turns
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import RoleError, UserError
from persia_cli.serving.description import NETWORK
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import FrozenNetwork, Predictor

REQUESTS = 64
"""Distinct requests, which are sent in turn."""
CONNECTIONS = 4
"""Connections of each thread of a worker, so that it always has a request waiting."""
RANDOM_CONNECTIONS = 256
"""Connections of requests at random moments: more than the server holds requests."""
ALONE = "network alone"
BELOW, ABOVE = 0.5, 1.5
"""Rates of requests at random moments, as parts of the rate at which the server is saturated."""
UNIT = "candidates/s"
LEAST_REQUESTS = 10
"""Requests at random moments of a turn that is asked for."""
SENDER_LIMIT = 0.9
"""Part of a core from which on the process that sends may itself be the limit."""


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """The plan of a measurement."""

    folder: Path
    candidates: int = 100
    user: str | None = None
    """Fields with one row for all candidates, between commas; None for the first half of them."""
    is_binary: bool = True
    workers: int = 1
    connections: int | None = None
    seconds: float = 5.0
    """Of a turn."""
    rounds: int = 3
    rate: float | None = None
    """Requests per second at random moments; None for parts of the rate at which the server is saturated."""

    @property
    def usual_connections(self) -> int:
        """Connections that saturate the server."""
        return CONNECTIONS * self.workers


@dataclass(frozen=True, slots=True)
class ServingSpeed:
    """The results of a measurement and their subject."""

    model: str
    requests: str
    """The contents of the requests, for people."""
    results: list[Result]
    private_bytes: tuple[int, int]
    """Memory that the workers had for themselves when all had been used, and at the end."""

    def about(self) -> dict[str, Any]:
        """Return what is no result, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "results"}


def measure_serving(plan: ServingPlan, note: Callable[[str], None]) -> ServingSpeed:
    """Measure a server of an exported model; raises UserError, CheckpointError, RoleError."""
    if plan.rate is not None and plan.rate * plan.seconds < LEAST_REQUESTS:
        raise UserError(
            f"--rate {plan.rate:g} for --seconds {plan.seconds:g} are {plan.rate * plan.seconds:.3g} requests, which "
            f"say little; give a rate and a time of {LEAST_REQUESTS} requests or more"
        )
    predictor = Predictor.open(plan.folder)
    pool = pool_of(predictor)
    form = RequestForm(plan.candidates, user_fields(predictor.description.inputs, plan.user), plan.is_binary)
    forms = dict.fromkeys([form, form._replace(candidates=1)])
    made = {each: prepared(predictor, pool, each, REQUESTS) for each in forms}
    settings = ServerSettings(str(plan.folder.absolute()))
    networks = [FrozenNetwork(plan.folder / NETWORK, threads=1) for _ in range(plan.workers)]
    with terminating_interrupts(), served(settings, plan.workers) as server:
        measurement = _ServingMeasurement(plan, server, networks, note)
        closed = [measurement.one_after_another(each, made[each]) for each in forms]
        before = server.private_bytes()
        random = measurement.at_random_moments(form, made[form], closed[0].sides[0].requests_per_s or 0.0)
        memory = before, server.private_bytes()
    model = predictor.description
    name = f"{model.name}, {model.network}, {len(model.features)} features, {model.dense} dense"
    return ServingSpeed(name, _told(form, pool), [*closed, *random], memory)


def _told(form: RequestForm, pool: Pool) -> str:
    """Return the contents of the requests, for people."""
    made_up = ", ".join(pool.made_up)
    source = f"{pool.samples} golden samples" if len(pool.made_up) < len(pool.values) else "values made up"
    also = f"; values of {made_up} are made up, and ids among them have no rows" if made_up else ""
    kind = "binary" if form.is_binary else "JSON"
    return f"{kind}, of {source}{also}; {len(form.user)} of {len(pool.values)} fields have one row for all candidates"


class _ServingMeasurement:
    """Takes the turns of one server and of its network alone."""

    def __init__(
        self, plan: ServingPlan, server: LoadedServer, networks: list[FrozenNetwork], note: Callable[[str], None]
    ) -> None:
        self._plan, self._server, self._networks, self._note = plan, server, networks, note

    def one_after_another(self, form: RequestForm, made: Sequence[PreparedRequest]) -> Result:
        """Measure connections that send each request once they have the last one's answer."""
        plan = self._plan
        connections = plan.connections or plan.usual_connections
        reports: list[LoadReport] = []
        takers = {
            OURS: lambda: self._loaded(form, made, connections, None, reports),
            ALONE: lambda: self._alone(form, made),
        }
        turns = take_turns(takers, plan.rounds, self._note, self._used, warm_up=False)
        name = f"{connections} connections, {_candidates(form)}"
        sides = [side_of(who, taken, form.candidates) for who, taken in turns.items()]
        sides[0] = self._with_latencies(sides[0], reports)
        sides[1] = replace(sides[1], requests_per_s=sides[1].median / form.candidates)
        return Result("one after another", name, UNIT, with_ratios(sides), rounds=plan.rounds, note=_of_sender(reports))

    def at_random_moments(self, form: RequestForm, made: Sequence[PreparedRequest], saturation: float) -> list[Result]:
        """Measure requests that do not wait for each other."""
        plan = self._plan
        rates = {f"{part:.0%} of {saturation:,.0f}/s": part * saturation for part in (BELOW, ABOVE)}
        if plan.rate is not None:
            rates = {f"{plan.rate:g}/s": plan.rate}
        reports: dict[str, list[LoadReport]] = {name: [] for name in rates}
        connections = max(RANDOM_CONNECTIONS, plan.connections or 0)
        is_low = plan.rate is None and (plan.connections or plan.usual_connections) < plan.usual_connections
        few = f"{plan.connections} connections may not saturate the server" if is_low else ""
        takers = {
            name: lambda rate=rate, name=name: self._loaded(form, made, connections, rate, reports[name])
            for name, rate in rates.items()
        }
        found = []
        for name, taken in take_turns(takers, plan.rounds, self._note, self._used, warm_up=False).items():
            side = self._with_latencies(side_of(OURS, taken, form.candidates), reports[name])
            side = replace(side, ratios={"saturation": (side.requests_per_s or 0.0) / saturation})
            side = replace(side, offered_per_s=self._offered_per_s(reports[name]))
            text = f"random moments, {name}, {_candidates(form)}"
            note = "; ".join(filter(None, (few, _of_sender(reports[name]))))
            found.append(Result("at random moments", text, UNIT, [side], rounds=plan.rounds, note=note))
        return found

    def _loaded(
        self, form: RequestForm, made: Sequence[PreparedRequest], connections: int, rate: float | None,
        reports: list[LoadReport],
    ) -> TurnFigures:  # fmt: skip
        plan, before = self._plan, self._server.cpu_s()
        order = LoadOrder(
            HOST, self._server.port, [each.sent for each in made], connections, min(1.0, plan.seconds / 5),
            plan.seconds, rate, seed=len(reports), parent=os.getpid(),
        )  # fmt: skip
        try:
            report = load(order)
        except RoleError:
            self._server.require_alive()
            raise
        refused = report.busy + report.errors
        if not report.answered and (refused or rate is None):
            why = report.first_error or ("503" if report.busy else "none")
            raise RoleError(
                f"the server answered none of {refused:,} requests with predictions; the first refusal was {why}"
            )
        reports.append(report)
        cpu = {"server": self._server.cpu_s() - before, "sender": report.cpu_s}
        # Of all requests of the turn, also those before the first that counts.
        part = plan.seconds / report.wall_s
        return TurnFigures(
            report.answered * form.candidates, plan.seconds, {name: each * part for name, each in cpu.items()}
        )

    def _alone(self, form: RequestForm, made: Sequence[PreparedRequest]) -> TurnFigures:
        """Compute the network in as many threads as the server has workers, on inputs that are there."""

        def compute(network: FrozenNetwork, until: float) -> int:
            done = 0
            for each in cycle(made):
                if perf_counter() >= until:
                    break
                network.logits(each.inputs)
                done += 1
            return done

        begin, cpu = perf_counter(), _own_cpu_s()
        until = begin + self._plan.seconds
        with ThreadPoolExecutor(len(self._networks)) as threads:
            done = sum(threads.map(lambda network: compute(network, until), self._networks))
        seconds = perf_counter() - begin
        return TurnFigures(done * form.candidates, seconds, {"this process": _own_cpu_s() - cpu})

    def _with_latencies(self, side: Side, reports: Sequence[LoadReport]) -> Side:
        latencies = np.concatenate([each.seconds_each() for each in reports])
        answered = sum(each.answered for each in reports)
        return replace(
            side,
            requests_per_s=answered / (len(reports) * self._plan.seconds),
            latency_ms=percentiles_ms(latencies),
            busy=sum(each.busy for each in reports),
            errors=sum(each.errors for each in reports),
        )

    def _offered_per_s(self, reports: Sequence[LoadReport]) -> float:
        due = sum(each.seconds_each().size + each.busy + each.errors for each in reports)
        return due / (len(reports) * self._plan.seconds)

    def _used(self) -> float:
        children = getrusage(RUSAGE_CHILDREN)
        return self._server.cpu_s() + children.ru_utime + children.ru_stime


def _own_cpu_s() -> float:
    own = os.times()
    return own.user + own.system


def _candidates(form: RequestForm) -> str:
    return "1 candidate" if form.candidates == 1 else f"{form.candidates:,} candidates"


def _of_sender(reports: Sequence[LoadReport]) -> str:
    """Print notes on the reports that a reader needs in addition to the numbers."""
    error = next((each.first_error for each in reports if each.first_error), "")
    busy = median(each.cpu_s / each.wall_s for each in reports)
    texts = [f"the first error was {error}"] if error else []
    if busy > SENDER_LIMIT:
        texts.append(f"the process that sends used {busy:.0%} of a core, and may have been the limit")
    return "; ".join(texts)

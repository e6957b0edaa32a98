"""Load: requests that each connection sends one after another, or that arrive at random moments.

Arrivals do not wait for answers. A request that finds no free connection is sent later, and its latency counts from
the moment when it was due: a slow server is not spared the requests that would have come meanwhile.
"""

import select
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.load.connection import LoadAnswer, LoadConnection
from persia_cli.bench.load.order import LoadOrder, LoadReport
from persia_cli.errors import WireError

LOOK_S = 0.5
"""Seconds between two looks at whether an answer is overdue."""
OK, BUSY = 200, 503


def poisson(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Return the moments, in seconds from now, at which requests arrive independently of each other."""
    draw = np.random.default_rng(seed)
    gaps = draw.exponential(1 / rate, int(rate * seconds + 10 * (rate * seconds) ** 0.5 + 10))
    moments: NDArray[np.float64] = np.cumsum(gaps)
    return moments[moments < seconds]


class LoadCount:
    """Counts predictions that came, and latencies and refusals of requests that were due, from `begin` to `end`."""

    def __init__(self, begin: float, end: float) -> None:
        self._begin, self._end = begin, end
        self._latencies = array("d")
        self._answered = self._busy = self._errors = 0
        self._first_error = ""

    def add(self, answer: LoadAnswer, now: float) -> None:
        """Count an answer; raises WireError for wrong predictions."""
        if answer.status == OK and not answer.is_right:
            raise WireError(
                "the server answers with other predictions than the model gives in this process; do its workers serve "
                "the same folder?"
            )
        if answer.status == OK and self._begin <= now < self._end:
            self._answered += 1
        # By when it was due: else those that a slow server refuses late would be in no count.
        if not self._begin <= answer.due < self._end:
            return
        if answer.status == OK:
            self._latencies.append(now - answer.due)
        elif answer.status == BUSY:
            self._busy += 1
        else:
            self._errors += 1
            self._first_error = self._first_error or answer.sentence()

    def give_up(self, due: Iterable[float], why: str) -> None:
        """Count requests without an answer as errors."""
        if missed := sum(self._begin <= moment < self._end for moment in due):
            self._errors += missed
            self._first_error = self._first_error or why

    def report(self, cpu_s: float, wall_s: float) -> LoadReport:
        """Return what was counted."""
        return LoadReport(
            None, self._answered, self._busy, self._errors, self._first_error, self._latencies.tobytes(),
            cpu_s, wall_s,
        )  # fmt: skip


class LoadGenerator:
    """Loads a server once, by one thread."""

    def __init__(self, order: LoadOrder) -> None:
        self._order = order
        self._requests = cycle(order.requests)
        self._idle: list[LoadConnection] = []
        self._busy: set[LoadConnection] = set()
        self._next_look = 0.0

    def run(self) -> LoadReport:
        """Send all requests, read their answers; raises WireError if the server dies, is silent or answers wrongly."""
        order = self._order
        with ExitStack() as connections:
            for _ in range(order.connections):
                self._idle.append(LoadConnection((order.host, order.port), order.patience_s))
                connections.callback(self._idle[-1].close)
            start, cpu = time.perf_counter(), time.process_time()
            counted = LoadCount(start + order.warm_up_s, start + order.warm_up_s + order.seconds)
            self._next_look = start + LOOK_S
            if order.rate is None:
                self._one_after_another(start, counted)
            else:
                self._at_random_moments(order.rate, start, counted)
            return counted.report(time.process_time() - cpu, time.perf_counter() - start)

    def _one_after_another(self, start: float, counted: LoadCount) -> None:
        end = start + self._order.warm_up_s + self._order.seconds
        now = start
        while self._busy or now < end:
            while self._idle and now < end:
                self._ask(now, now)
            now = self._count(LOOK_S, counted)

    def _at_random_moments(self, rate: float, start: float, counted: LoadCount) -> None:
        moments = start + poisson(rate, self._order.warm_up_s + self._order.seconds, self._order.seed)
        coming, due = deque(moments.tolist()), deque[float]()
        now, patience_s = start, self._order.patience_s
        last = start + self._order.warm_up_s + self._order.seconds + patience_s
        while coming or due or self._busy:
            if now > last:  # far more requests were due than can be sent
                missed = [*due, *coming, *(each.due for each in self._busy)]
                counted.give_up(missed, f"none: its turn had not come {patience_s:g} s after the end")
                break
            while coming and coming[0] <= now:
                due.append(coming.popleft())
            while due and self._idle:
                self._ask(due.popleft(), now)
            now = self._count(max(0.0, coming[0] - time.perf_counter()) if coming else LOOK_S, counted)

    def _ask(self, due: float, now: float) -> None:
        connection = self._idle.pop()
        connection.ask(next(self._requests), due, now)
        self._busy.add(connection)

    def _count(self, timeout_s: float, counted: LoadCount) -> float:
        """Count the answers that come within a time, and return the time then."""
        for answer in self._answers(timeout_s):
            counted.add(answer, time.perf_counter())
        now = time.perf_counter()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            oldest = min((each.sent for each in self._busy), default=now)
            if now - oldest > self._order.patience_s:
                raise WireError(f"the server has not answered a request for {self._order.patience_s:g} s")
        return now

    def _answers(self, timeout_s: float) -> Iterator[LoadAnswer]:
        # Not poll or epoll, whose timeouts are whole milliseconds: requests would be sent that late.
        readable, _, _ = select.select(self._busy, (), (), min(timeout_s, LOOK_S))
        for connection in readable:
            answer = connection.read()
            if answer is not None:
                self._busy.remove(connection)
                self._idle.append(connection)
                yield answer

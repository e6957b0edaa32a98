"""Candidates per second and latencies of `persia serve`, against its network alone in one process.

    python -m scripts.measure serve shop                        # a folder that persia export wrote
    python -m scripts.measure serve shop --candidates 500 --user user,country --workers 2
    python -m scripts.measure serve shop --rate 200 --seconds 60 --rounds 1

Another process (`scripts/measure/load.py`) sends requests (binary, Open Inference Protocol): first one after another on
each connection, with many candidates and with one; then at random moments, at 50 % and 150 % of the speed before, where
latency counts from the moment when a request was due. Every answer must have the bytes that the model gives here.

Requests are made of the golden samples, whose ids have rows. Texts are made up, and their ids have none.
"""

import re
import subprocess
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any, NamedTuple, TextIO
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from persia_cli.bench.result import OURS, Result, with_ratios
from persia_cli.bench.rounds import MeasuredTurn, side_of, take_turns
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.ids import NULL_ID
from persia_cli.engines.processes import python_module
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import RoleError, UserError
from persia_cli.observe.machine import cpu_seconds, cpu_seconds_of
from persia_cli.serving.description import GOLDEN, NETWORK, ModelInput
from persia_cli.serving.golden import Golden, example_row
from persia_cli.serving.http.answers import MODEL_VERSION, inferred
from persia_cli.serving.http.requests import LENGTHS, PredictionRequest, RequestReader
from persia_cli.serving.http.tensors import NUMBERS
from persia_cli.serving.predictor import FrozenNetwork, Predictor
from persia_cli.serving.row_reader import Inputs
from persia_cli.serving.sample_table import batch_of_table
from scripts.measure import Given, Note
from scripts.measure.load import HOST, Load, Loaded, load
from scripts.measure.timing import measured

REQUESTS = 64
"""Distinct requests, which are sent in turn."""
CONNECTIONS = 4
"""Connections of each worker that send one request after another, so that it always has one waiting."""
RANDOM_CONNECTIONS = 256
"""Connections of requests at random moments: more than the server holds requests."""
PARTS = (0.5, 1.5)
"""Rates of requests at random moments, as parts of the rate at which the server is saturated."""
ALONE = "network alone"
START_S = 70.0
"""Seconds within which a server has to be ready."""
STOP_S = 60.0
SENDER_LIMIT = 0.9
"""Part of a core from which on the process that sends may itself be the limit."""


class Request(NamedTuple):
    """A request, and what the network alone gets for it."""

    wire: bytes
    asked: PredictionRequest
    batch: Batch
    inputs: Inputs


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("folder", type=Path, help="a folder that persia export wrote")
    parser.add_argument("--candidates", type=int, default=100, help="samples of a request; %(default)s")
    parser.add_argument("--user", help="fields, between commas, with one row for all candidates; the first half")
    parser.add_argument("--workers", type=int, default=1, help="workers of the server; %(default)s")
    parser.add_argument("--rate", type=float, help="requests per second at random moments, in place of the two rates")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of a turn; %(default)s")
    parser.set_defaults(rounds=3)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure a server in alternating turns; raises UserError, CheckpointError, RoleError."""
    seconds = 0.3 if given.quick else given.seconds
    predictor = Predictor.open(given.folder)
    user = user_fields(predictor.description.inputs, given.user)
    sizes = dict.fromkeys([given.candidates, 1])
    requests = {candidates: prepare_requests(predictor, candidates, user, REQUESTS) for candidates in sizes}
    networks = [FrozenNetwork(given.folder / NETWORK, threads=1) for _ in range(given.workers)]
    with terminating_interrupts(), served(given.folder, given.workers) as (pid, port):
        loads: list[Loaded] = []

        def loaded(candidates: int, connections: int, rate: float | None) -> MeasuredTurn:
            sent = [(request.wire, answers_of(request, predictor)) for request in requests[candidates]]
            order = Load(port, sent, connections, seconds, rate, min(1.0, seconds / 5), seed=len(loads))
            used = cpu_of_server(pid)
            loads.append(load(order))
            if not loads[-1].answered:
                raise RoleError(f"the server answered nothing with predictions: {loads[-1].first_error or '503'}")
            # Of all requests of the turn, also those before the first that counts.
            server_s = (cpu_of_server(pid) - used) * seconds / loads[-1].wall_s
            return MeasuredTurn(loads[-1].answered * candidates, seconds, {"server": server_s})

        def turns(takers: dict[str, Callable[[], MeasuredTurn]]) -> dict[str, list[MeasuredTurn]]:
            loads.clear()
            return take_turns(takers, given.rounds, note, lambda: cpu_of_server(pid), warm_up=False)

        saturation = 0.0
        for candidates, prepared in requests.items():
            connections = CONNECTIONS * given.workers
            ours = partial(loaded, candidates, connections, None)
            alone = partial(_alone, networks, prepared, candidates, seconds)
            sides = [side_of(name, own, candidates) for name, own in turns({OURS: ours, ALONE: alone}).items()]
            name = f"{connections} connections, {candidates} candidate{'s' * (candidates > 1)}"
            yield Result("", name, "candidates/s", with_ratios(sides), given.rounds, note=_notes(loads))
            yield from _latencies(name, loads)
            saturation = saturation or sides[0].median / candidates
        for rate in [given.rate] if given.rate else [part * saturation for part in PARTS]:
            ours = partial(loaded, given.candidates, RANDOM_CONNECTIONS, rate)
            side = side_of(OURS, turns({OURS: ours})[OURS], given.candidates)
            name = f"random moments, {rate:,.0f} requests/s, {given.candidates} candidates"
            yield Result("", name, "candidates/s", [side], given.rounds, note=_notes(loads))
            yield from _latencies(name, loads)


def _alone(
    networks: Sequence[FrozenNetwork], requests: Sequence[Request], candidates: int, seconds: float
) -> MeasuredTurn:
    """Compute the network in as many threads as the server has workers, on inputs that are in memory."""
    begin, cpu = perf_counter(), cpu_seconds()

    def compute(network: FrozenNetwork) -> int:
        for done, request in enumerate(cycle(requests)):
            if perf_counter() >= begin + seconds:
                return done
            network.logits(request.inputs)
        return 0

    with ThreadPoolExecutor(len(networks)) as threads:
        done = sum(threads.map(compute, networks))
    return MeasuredTurn(done * candidates, perf_counter() - begin, {"this process": cpu_seconds() - cpu})


def _latencies(name: str, loads: Sequence[Loaded]) -> Iterator[Result]:
    for part in (50, 99):
        values = [float(np.percentile(each.seconds_each() * 1e3, part)) for each in loads if each.latencies]
        yield measured(f"{name}: latency of the {part}th percentile", "ms", {OURS: values})


def _notes(loads: Sequence[Loaded]) -> str:
    """Return what a reader needs to know in addition to the numbers."""
    due, busy, errors = (sum(getattr(each, name) for each in loads) for name in ("due", "busy", "errors"))
    texts = [f"{due:,} requests, {busy:,} refused (503), {errors:,} errors"]
    texts += [f"the first error was {each.first_error}" for each in loads if each.first_error][:1]
    sender = median(each.cpu_s / each.wall_s for each in loads)
    if sender > SENDER_LIMIT:
        texts.append(f"the process that sends used {sender:.0%} of a core, and may have been the limit")
    return "; ".join(texts)


def user_fields(inputs: Sequence[ModelInput], chosen: str | None) -> set[str]:
    """Return the chosen fields, or the first half if it is None; raises UserError for others."""
    names = [each.name for each in inputs]
    if chosen is None:
        return set(names[: len(names) // 2])
    fields = {name.strip() for name in chosen.split(",") if name.strip()}
    if unknown := fields - set(names):
        raise UserError(f"--user {chosen}: the model has no field {min(unknown)}; it has {', '.join(names)}")
    return fields


def prepare_requests(predictor: Predictor, candidates: int, user: set[str], count: int) -> list[Request]:
    """Return requests with the answers that the model gives in this process."""
    model, draw = predictor.description, np.random.default_rng(1)
    rows = _golden_rows(predictor, draw)
    reader = RequestReader(model.inputs, model.outputs, candidates)
    requests = []
    for _ in range(count):
        chosen = [rows[number] for number in draw.integers(0, len(rows), candidates)]
        entries: list[dict[str, Any]] = []
        parts: list[bytes] = []
        for field in model.inputs:
            values = [row[field.name] for row in (chosen[:1] if field.name in user else chosen)]
            for name, datatype, own in _tensors(field, values):
                parts.append(_bytes(datatype, own))
                size = {"binary_data_size": len(parts[-1])}
                entries.append({"name": name, "datatype": datatype, "shape": [len(own)], "parameters": size})
        head = msgspec.json.encode({"inputs": entries, "parameters": {"binary_data_output": True}})
        body, length = head + b"".join(parts), str(len(head)).encode()
        parsed = reader.infer(body, length)
        batch = predictor.fields.batch(parsed.columns)
        inputs = predictor.inputs(batch, np.zeros(len(model.features), np.int64))
        requests.append(Request(_wire(model.name, body, length), parsed, batch, inputs))
    return requests


def answers_of(request: Request, predictor: Predictor, version: int | None = None) -> dict[str, bytes]:
    """Return the body of a model's answer, by the version that it names."""
    model = msgspec.structs.replace(predictor.description, version=version)
    answer = inferred(model, request.asked, predictor.predict(request.batch))
    return {answer.headers[MODEL_VERSION]: answer.body}


def _golden_rows(predictor: Predictor, draw: np.random.Generator) -> list[dict[str, Any]]:
    """Return a row of a request for each golden sample, with texts that are made up."""
    model = predictor.description
    with pa.memory_map(str(predictor.folder / GOLDEN)) as file:
        table = pa.ipc.open_file(file).read_all()
    rows = []
    for number in range(max(1, len(table))):
        part = table.slice(number, 1).combine_chunks()
        batch = batch_of_table(part, [each.name for each in model.features], model.dense, len(model.outputs))
        row = example_row(predictor.fields, Golden(batch, np.empty((batch.size, 0), np.float32)))
        for field in model.inputs:
            if field.datatype == "BYTES" and not row[field.name]:
                text = f"{draw.integers(0, 1000):08x}"  # a number in hexadecimal, which some columns demand
                row[field.name] = [text] if len(field.shape) == 2 else text
        rows.append(row)
    return rows


def _tensors(field: ModelInput, values: list[Any]) -> Iterator[tuple[str, str, list[Any]]]:
    if len(field.shape) == 2:
        yield field.name + LENGTHS, "INT32", [len(each) for each in values]
        values = [value for each in values for value in each]
    yield field.name, field.datatype, values


def _bytes(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        texts = [text.encode() for text in values]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    kind = NUMBERS[datatype]
    number = float if kind.kind == "f" else int
    return bytes(np.array([NULL_ID if value is None else number(value) for value in values], kind).tobytes())


def _wire(model: str, body: bytes, head_length: bytes) -> bytes:
    lines = [
        f"POST /v2/models/{quote(model, safe='')}/infer HTTP/1.1".encode(),
        b"host: localhost",
        b"content-length: %d" % len(body),
        b"content-type: application/octet-stream",
        b"inference-header-content-length: " + head_length,
    ]
    return b"\r\n".join([*lines, b"", body])


@contextmanager
def served(folder: Path, workers: int) -> Iterator[tuple[int, int]]:
    """Serve a model until the end of the block; yields process id and port. Raises RoleError if it cannot be."""
    command = [*python_module("persia_cli"), "serve", str(folder), "--host", HOST, "--port", "0"]
    with TemporaryFile("w+") as log:
        process = subprocess.Popen([*command, "--workers", str(workers)], stderr=log)
        try:
            yield process.pid, _port(process, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(process: "subprocess.Popen[bytes]", log: TextIO) -> int:
    end = perf_counter() + START_S
    while True:
        ended = process.poll() is not None
        log.seek(0)
        printed = log.read()
        if found := re.search(rf"http://{HOST}:(\d+)", printed):
            return int(found[1])
        if ended:
            raise RoleError(f"the server ended before it was ready: {printed.strip()}")
        if perf_counter() > end:
            raise RoleError(f"the server is not ready after {START_S:g} s")
        time.sleep(0.05)


def cpu_of_server(pid: int) -> float:
    """Return the CPU seconds of a server and its workers so far."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError as error:
        raise RoleError("the server has ended") from error
    return sum(map(cpu_seconds_of, [pid, *map(int, children)]))

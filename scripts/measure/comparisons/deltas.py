r"""A server that follows, against one without new versions; and a training that publishes, against one that does not.

    persia train conf=synthetic 'dataset.generator.cardinalities=[1000000,1000000]' \
        dataset.generator.train_rows=1000000 train.batch_size=2048 --run-dir runs/shop
    persia export runs/shop -o shop                            # rows in float32, at least as many as --rows
    python -m scripts.measure deltas shop
    python -m scripts.measure deltas shop --deltas 30 --rounds 1 --seconds 30

Serving: each delta has new values of `--rows` rows of the model. One is published each second into a folder that a
server follows, while requests come at random moments, at half of the rate at which the server is saturated. Every
answer must have the bytes that a full export of its version gives: a folder without overlays, whose rows are written
over by this program. Then the server is rolled back.

Training: generated samples, first with a version each second, which a server follows; then alternately with a version
every five seconds, and without.
"""

import json
import re
import shutil
import subprocess
import threading
import time
from argparse import ArgumentParser
from asyncio import run
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import numpy as np
import pyarrow.parquet as pq

from persia_cli.bench.result import OURS, Result
from persia_cli.bench.rounds import alternating
from persia_cli.engines.processes import python_module
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import RoleError, UserError
from persia_cli.kernels.rows import hashing
from persia_cli.publish.rows import ChangedRows, base_rows, rows_writer
from persia_cli.publish.version import (
    CURRENT,
    FORMAT_VERSION,
    VERSION,
    Version,
    read_version,
    served_version,
    version_text,
    versions_of,
    write_served,
)
from persia_cli.serving.description import GOLDEN, MODEL, NETWORK, ROWS, note_of
from persia_cli.serving.golden import Golden, read_golden, write_golden
from persia_cli.serving.overlay import rows_file
from persia_cli.serving.predictor import Predictor
from scripts.measure import Given, Note
from scripts.measure.comparisons.serve import (
    CONNECTIONS,
    RANDOM_CONNECTIONS,
    REQUESTS,
    answers_of,
    prepare_requests,
    served,
    user_fields,
)
from scripts.measure.load import HOST, OK, Connection, Load, Loaded, load
from scripts.measure.timing import measured

EVERY_S = 1.0
"""Seconds between two deltas."""
HALF = 0.5
LATE_S = 60.0
"""Seconds within which a published version has to be served."""
WITHOUT = "without"
TRAINING = [
    "conf=synthetic", "cluster=embedded", "model=dcn_v2", "model.hidden=[64,32]", "train.batch_size=4096",
    "dataset.generator.dense=4", "dataset.generator.cardinalities=[1000,200000,1000000]",
    "dataset.generator.eval_rows=0", "train.log_every_steps=20",
]  # fmt: skip
Requests = list[tuple[bytes, dict[str, bytes]]]


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("folder", type=Path, help="a folder that persia export wrote, with rows in float32")
    parser.add_argument("--deltas", type=int, default=100, help="versions that are published; %(default)s")
    parser.add_argument("--rows", type=int, default=100_000, help="changed rows of each; %(default)s")
    parser.add_argument("--candidates", type=int, default=10, help="samples of a request; %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of a training; %(default)s")
    parser.set_defaults(rounds=2)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure serving, then training; raises UserError, CheckpointError, RoleError."""
    if given.quick:
        given.deltas, given.rows, given.seconds = 4, 100, 5.0
    with terminating_interrupts(), TemporaryDirectory(prefix="measure-deltas-", dir=Path.cwd()) as name:
        note(f"making {given.deltas} deltas")
        versions = Versions(given.folder, Path(name), given.deltas, given.rows, given.candidates)
        yield from _serving(given, note, versions)
        yield from _freshness(given, note, Path(name))
        yield from _speed(given, note, Path(name))


class Versions:
    """Deltas of random values, which are published one after the other, and the right answers of each version."""

    def __init__(self, export: Path, place: Path, deltas: int, rows: int, candidates: int) -> None:
        """Make all versions; raises UserError if the model has fewer rows."""
        self.folder, self.published = place / "published", 1
        self._made, full = place / "made", place / "full"
        (base := self.folder / "base-00000001").parent.mkdir()
        shutil.copytree(export, base)
        shutil.copytree(export, full)
        self._model = Predictor.open(full)
        groups, draw = self._model.description.groups, np.random.default_rng(7)
        self._golden = read_golden(full, self._model.description)
        if (there := sum(group.rows for group in groups)) < rows:
            raise UserError(f"{export} has {there:,} rows; give one of more, or a lower --rows")
        self._describe(base, None, [MODEL])
        write_served(self.folder, 1)
        asked = prepare_requests(self._model, candidates, user_fields(self._model.description.inputs, None), REQUESTS)
        self.requests: Requests = [(request.wire, answers_of(request, self._model, 1)) for request in asked]
        keys = [base_rows(base, group) for group in groups]
        values = [np.memmap(full / group.values, np.float32, "r+").reshape(-1, group.dim) for group in groups]
        for self.newest in range(2, deltas + 2):
            draft = self._made / f"delta-{self.newest:08d}"
            (draft / ROWS).mkdir(parents=True)
            for group, own, content in zip(groups, keys, values, strict=True):
                names, salts = (
                    [table.name for table in group.tables],
                    np.array([t.salt for t in group.tables], np.uint64),
                )
                with rows_writer(draft / rows_file(group.number), names, group.dim) as add:
                    for number, (table, change) in enumerate(zip(group.tables, own, strict=True)):
                        chosen = np.sort(draw.choice(table.rows, rows * table.rows // there, replace=False))
                        found = draw.normal(0, 0.1, (chosen.size, group.dim)).astype(np.float32)
                        content[table.first_row + chosen] = found
                        of, ids = np.full(chosen.size, number, np.uint16), np.empty(chosen.size, np.uint64)
                        hashing.recover_ids(change.keys[chosen], of, salts, ids)
                        add(ChangedRows(names, change.keys[chosen], of, ids, found, False))
            with self._model.zeros_for_missing():
                logits = self._model.predict(self._golden.batch).logits
            shutil.copyfile(full / NETWORK, draft / NETWORK)
            features = [feature.name for feature in self._model.description.features]
            labels = [output.label for output in self._model.description.outputs]
            write_golden(draft, features, labels, Golden(self._golden.batch, logits))
            paths = [*(rows_file(group.number) for group in groups), NETWORK, GOLDEN]
            self._describe(draft, self.newest - 1, paths)
            for request, (_, right) in zip(asked, self.requests, strict=True):
                right |= answers_of(request, self._model, self.newest)

    def _describe(self, folder: Path, parent: int | None, paths: list[str]) -> None:
        number, files = (parent or 0) + 1, [note_of(folder, path) for path in paths]
        version = Version(FORMAT_VERSION, number, parent, "run", "1", number, number, 1.0, files)
        (folder / VERSION).write_bytes(version_text(version))

    def publish(self, count: int, times: dict[str, float]) -> None:
        """Publish the next ones, one each EVERY_S; note when."""
        due = time.monotonic()
        for _ in range(count):
            self.published += 1
            name = f"delta-{self.published:08d}"
            (self._made / name).rename(self.folder / name)
            write_served(self.folder, self.published)
            times[str(self.published)] = time.time()
            due += EVERY_S
            time.sleep(max(0.0, due - time.monotonic()))


def _serving(given: Given, note: Note, versions: Versions) -> Iterator[Result]:
    each = given.deltas // given.rounds
    loads: dict[str, list[Loaded]] = {WITHOUT: [], OURS: []}
    published: dict[str, float] = {}
    with served(versions.folder, 1) as (_, port):
        note("saturating the server")
        fast = load(Load(port, versions.requests, CONNECTIONS, 3.0))
        rate = HALF * fast.answered / 3.0
        for number, name in alternating(loads, given.rounds):
            note(f"round {number + 1}: {name}")
            order = Load(port, versions.requests, RANDOM_CONNECTIONS, each * EVERY_S, rate, seed=number)
            publishing = threading.Thread(target=versions.publish, args=(each, published))
            if name == OURS:
                publishing.start()
            loads[name].append(load(order))
            if name == OURS:
                publishing.join()
        yield from _of_loads(given, loads, published, rate)
        note("rolling back")
        yield from _rollbacks(versions, port)


def _of_loads(
    given: Given, loads: dict[str, list[Loaded]], published: dict[str, float], rate: float
) -> Iterator[Result]:
    every = [each for own in loads.values() for each in own]
    answers = sum(len(each.latencies) // 8 for each in every)
    refused = {name: sum(each.busy for each in own) for name, own in loads.items()}
    errors = [each.first_error for each in every if each.errors]
    text = f"{rate:,.0f} requests/s, deltas of {given.rows:,} rows"
    told = f"{answers:,} answers, {answers * given.candidates:,} scores, each that of its version; "
    told += f"refused as too many: {refused[OURS]:,}, {refused[WITHOUT]:,} without; errors: {errors or 'none'}"
    for part in (50, 99):
        values = {
            name: [float(np.percentile(each.seconds_each() * 1e3, part)) for each in loads[name]]
            for name in (OURS, WITHOUT)
        }
        yield measured(f"latency of the {part}th percentile, {text}", "ms", values, told)
    first = {version: at for each in loads[OURS] for version, at in each.first.items()}
    delays = [first[version] - at for version, at in published.items() if version in first]
    for part in (50, 99):
        seconds = float(np.percentile(delays, part))
        yield measured(f"published to served, {part}th percentile", "s", {OURS: [seconds]}, f"{len(delays)} versions")


def _rollbacks(versions: Versions, port: int) -> Iterator[Result]:
    """Serve old versions, the oldest at last, and the newest after each."""
    wire, right = versions.requests[0]
    newest = versions.published
    chosen, served_s, changed_s = sorted({1, 2, newest // 2, newest - 1} - {0, newest}, reverse=True), [], []
    for version in chosen:
        for text, number in ((str(version), version), ("newest", newest)):
            before, changed_at = served_version(versions.folder), 0.0
            begin = time.monotonic()
            command = subprocess.Popen(
                [*python_module("persia_cli"), "rollback", str(versions.folder), text], stderr=subprocess.DEVNULL
            )
            while True:
                changed = served_version(versions.folder) != before
                changed_at = changed_at or (time.monotonic() if changed else 0.0)
                status, found, body = run(_asked(port, wire))
                if status != OK or body != right[found]:
                    raise RoleError(f"the answer of version {found} is wrong, status {status}")
                if changed_at and found == str(number):
                    break
                if time.monotonic() - begin > LATE_S:
                    raise RoleError(f"version {number} is not served after {LATE_S:g} s")
                time.sleep(0.005)
            command.wait()
            changed_s.append(changed_at - begin)
            served_s.append(time.monotonic() - changed_at)
    text = f"to versions {', '.join(map(str, chosen))} of {newest}, and back"
    yield measured("rollback, from the command to the choice", "s", {OURS: changed_s}, text)
    yield measured("rollback, from the choice to the answer", "s", {OURS: served_s}, text)


async def _asked(port: int, wire: bytes) -> tuple[int, str, bytes]:
    connection = Connection(port)
    try:
        return await connection.ask(wire)
    finally:
        connection.close()


class Training:
    """A training of generated samples for some seconds."""

    def __init__(self, place: Path, seconds: float, *publish: str) -> None:
        place.mkdir()
        self._run, self._seconds = place / "run", seconds
        words = [*TRAINING, "dataset.generator.train_rows=1000000000", *publish]
        command = [*python_module("persia_cli"), "train", *words, "--run-dir", str(self._run)]
        with (place / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def _lines(self) -> list[dict[str, float]]:
        path = self._run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def end(self) -> tuple[float, str]:
        """Let it train on, then end; return samples/s after its first seconds, and the last line of its publisher."""
        try:
            deadline = time.monotonic() + LATE_S
            while not self._lines():
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RoleError(f"the training has not begun: see {self._run.parent / 'log'}")
                time.sleep(0.1)
            time.sleep(self._seconds)
        finally:
            self._process.terminate()
            self._process.wait(2 * LATE_S)
        lines = self._lines()
        first, last = lines[len(lines) // 5], lines[-1]
        log = self._run / "roles" / "publisher.log"
        told = re.search(r"CPU of the publisher: .*", log.read_text()) if log.is_file() else None
        return (last["samples"] - first["samples"]) / (last["time"] - first["time"]), told[0] if told else ""


def _freshness(given: Given, note: Note, place: Path) -> Iterator[Result]:
    """Measure the time from a trained step to its first answer, with a version each second."""
    note("trained to served")
    folder, seen = place / "fresh", dict[int, float]()
    training = Training(place / "fresh-run", given.seconds, f"publish.to={folder}", "publish.every_s=1")
    ended = threading.Event()

    def watch() -> None:
        end = time.monotonic() + LATE_S
        while not (folder / CURRENT).is_file() and time.monotonic() < end:
            time.sleep(0.1)
        with served(folder, 1) as (_, port):
            while not ended.wait(0.02):
                with urlopen(f"http://{HOST}:{port}/metrics") as answer:
                    found = re.search(r"^persia_serving_version (\d+)", answer.read().decode(), re.MULTILINE)
                seen.setdefault(int(found[1]) if found else 0, time.time())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        training.end()
    finally:
        ended.set()
        watching.join()
    made = {number: read_version(path) for number, path in versions_of(folder).items()}
    begin = min(seen) if seen else 0
    delays = [
        min(at for other, at in seen.items() if other >= number) - version.time
        for number, version in made.items()
        if begin < number <= max(seen, default=0)
    ]
    if not delays:
        raise RoleError("no delta was served in time; give more --seconds")
    rows = [
        sum(pq.read_metadata(path).num_rows for path in (folder / version.folder / ROWS).iterdir())
        for version in made.values()
        if not version.is_base
    ]
    text = f"{len(delays)} versions, of {int(np.median(rows or [0])):,} changed rows (median)"
    for part in (50, 99):
        seconds = float(np.percentile(delays, part))
        yield measured(f"trained to served, {part}th percentile, a version each second", "s", {OURS: [seconds]}, text)


def _speed(given: Given, note: Note, place: Path) -> Iterator[Result]:
    sides, told = {OURS: list[float](), WITHOUT: list[float]()}, ""
    for number, name in alternating(sides, given.rounds):
        note(f"training, round {number + 1}: {name}")
        own = place / f"speed-{number}-{name}"
        words = [f"publish.to={own / 'published'}", "publish.every_s=5"] if name == OURS else []
        speed, line = Training(own, given.seconds, *words).end()
        sides[name].append(speed)
        told = line or told
        shutil.rmtree(own)
    yield measured("training, a version every 5 s", "samples/s", sides, told)

"""CPU milliseconds of a step outside the network: of each role and thread, in a job whose network computes nothing.

    python -m scripts.measure overhead
    python -m scripts.measure overhead --batches 4096 --dims 16 -- cluster.data_loaders=2
    python -m scripts.measure overhead --batches 4096 --network lr
    python -m scripts.measure overhead --batches 4096 --dims 16 --graphs

The job is a real one of Criteo's shape, whose batches repeat from memory. The result is the processor time of all
roles together. The table has each thread, numbered by its use within its process, and how often it gave up its
processor in a step: it then waited for a message, for the interpreter lock or for another thread.
"""

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from statistics import median

from persia_cli.bench.result import OURS, Result, Stage
from persia_cli.bench.rounds import MeasuredTurn, side_of, take_turns, turn_steps
from persia_cli.bench.turns import TurnJob
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import inspect
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.jobs.plan import settled_run
from scripts.measure import Given, Note

NOTHING = ["model=custom", f"model.file={Path(__file__).parents[1] / 'nothing.py'}"]
RING = 16
LEAST_MS = 0.005
"""Threads that use less of a step are left out."""
Thread = tuple[str, int]
"""A replica, and the number of a thread."""


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the job")
    parser.add_argument("--batches", nargs="+", type=int, default=[512, 4096, 16384], metavar="SAMPLES")
    parser.add_argument("--dims", nargs="+", type=int, default=[1, 16, 128], metavar="DIM")
    parser.add_argument("--network", help="one of conf/model, in place of one that computes nothing")
    parser.add_argument("--graphs", action="store_true", help="with the NN worker of a GPU, which replays graphs")
    parser.add_argument("--steps", type=int, default=200, help="steps that a turn measures; %(default)s")
    parser.set_defaults(rounds=3)


@dataclass(frozen=True, slots=True)
class Used:
    """The use of a processor by a thread so far."""

    cpu_ms: float
    waits: int

    def __sub__(self, before: "Used") -> "Used":
        return Used(self.cpu_ms - before.cpu_ms, self.waits - before.waits)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure one job after the other, each in several turns."""
    cases = [*product(given.dims, given.batches)]
    for dim, batch in cases[:1] if given.quick else cases:
        nothing = [*NOTHING, f"model.name={'Replayed' if given.graphs else 'Nothing'}", f"model.dim={dim}"]
        model = [f"model={given.network}"] if given.network else nothing
        job = ["conf=criteo", "cluster=local", *model, f"train.batch_size={batch}", "optimizer=adagrad"]
        run, steps = settled_run([*job, *given.overrides], []), 20 if given.quick else given.steps
        yield _measured(f"batch {batch}, dim {run.model.dim}", run, steps, given.rounds, note)


def _measured(name: str, run: Run, steps: int, rounds: int, note: Note) -> Result:
    threads: dict[Thread, list[Used]] = {}

    def turn(job: TurnJob) -> MeasuredTurn:
        before = threads_of(job.pids)
        measured = job.turn()
        for thread, used in threads_of(job.pids).items():
            threads.setdefault(thread, []).append(used - before.get(thread, Used(0.0, 0)))
        return measured

    with terminating_interrupts(), TurnJob(run, inspect(run.dataset), steps, rounds + 1, RING) as job:
        turns = take_turns({OURS: partial(turn, job)}, rounds, note, job.cpu_seconds)[OURS]
    side = side_of(OURS, turns, run.train.batch)
    per_step = [sum(each.cpu_s.values()) * 1e3 * run.train.batch / each.samples for each in turns]
    least, middle, most = min(per_step), median(per_step), max(per_step)
    side = replace(side, median=middle, least=least, most=most, rates=per_step)
    rates = [each.samples_per_s for each in turns]
    speed = f"{median(rates):,.0f} samples/s; fastest round / slowest {max(rates) / min(rates):.2f}"
    return Result("", f"CPU of a step, {name}", "ms", [side], rounds, steps, speed, _stages(threads, turn_steps(steps)))


def threads_of(pids: Mapping[str, int]) -> dict[Thread, Used]:
    """Return the use of each thread of some processes so far; threads that end meanwhile are left out."""
    used = {}
    for replica, pid in pids.items():
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                # proc(5): nanoseconds on a processor come first.
                cpu_ns = int((task / "schedstat").read_text().split()[0])
                lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
                used[replica, int(task.name)] = Used(cpu_ns / 1e6, int(lines["voluntary_ctxt_switches"]))
    return used


def _stages(threads: Mapping[Thread, list[Used]], steps: int) -> list[Stage]:
    """Return what each thread uses in a step: the median of all turns after the first, which warms up."""
    stages = []
    for replica, group in groupby(sorted(threads), key=lambda thread: thread[0]):
        uses = [threads[thread][1:] or threads[thread] for thread in group]
        means = [Used(median(u.cpu_ms for u in own) / steps, round(median(u.waits for u in own))) for own in uses]
        for number, used in enumerate(sorted(means, key=lambda use: -use.cpu_ms), 1):
            if used.cpu_ms >= LEAST_MS:
                what = f"thread {number}, {used.waits / steps:.1f} waits"
                stages.append(Stage(replica, what, used.cpu_ms, False))
    return stages

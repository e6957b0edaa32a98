"""Samples per second of a job with more replicas of one role at a time, each pinned to a processor.

    python -m scripts.measure scaling                                # replicas from 1 to 2
    python -m scripts.measure scaling --most 8 conf=criteo train.batch_size=4096 model.dim=64

Where replicas share processors, compare the CPU time of a step: it is that of all replicas, so it shows what a role
costs more with two of them. The ratios are to the job with one replica of each role, and to as many times its speed.
"""

import os
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle

from persia_cli.bench.capacity import round_ratio
from persia_cli.bench.result import Result
from persia_cli.bench.rounds import side_of, take_turns
from persia_cli.bench.turns import idle_jobs
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.jobs.plan import settled_run
from persia_cli.plan.job import all_replicas
from scripts.measure import Given, Note

ROLES = ("embedding-server", "embedding-worker", "data-loader", "nn-worker")
ONE = "one of each"


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    job = ["conf=criteo", "train.batch_size=4096"]
    parser.add_argument("overrides", nargs="*", default=job, metavar="KEY=VALUE", help="of the job")
    parser.add_argument("--most", type=int, default=2, help="most replicas of a role, from 1 in doubles; %(default)s")
    parser.add_argument("--steps", type=int, default=100, help="steps that a turn measures; %(default)s")
    parser.set_defaults(rounds=3)


def counts_up_to(most: int) -> list[int]:
    """Return 2, 4 and so on, and `most` itself."""
    return sorted({2**power for power in range(1, most.bit_length())} | {most})


def with_replicas(run: Run, role: str, count: int, processors: Sequence[int]) -> Run:
    """Return the run with `count` replicas of a role, one of each other role, and each on its own processor.

    Several replicas share a processor where processors are fewer. An NN worker has `train.threads` processors.
    """
    counts = dict.fromkeys(ROLES, 1) | {role: count}
    following = cycle(processors)

    def pin(pinned: str) -> str:
        wanted = run.train.threads if pinned == "nn-worker" else 1
        return ",".join(str(next(following)) for _ in range(min(wanted, len(processors))))

    pins = {each.replace("-", "_"): tuple(pin(each) for _ in range(number)) for each, number in counts.items()}
    numbers = {f"{each.replace('-', '_')}s": number for each, number in counts.items()}
    return run.model_copy(update={"cluster": run.cluster.model_copy(update={**numbers, "pin": pins})})


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure all jobs in alternating turns; raises UserError for runs that cannot be measured like this."""
    run, steps = settled_run(given.overrides, []), 20 if given.quick else given.steps
    if given.most < 2:
        raise UserError(f"--most={given.most}: a role is measured with two replicas or more")
    if any(run.cluster.processors_of(replica.role, replica.index) for replica in all_replicas(run)):
        raise UserError("this benchmark pins every replica to a processor; leave out cluster.pin")
    if run.train.batch < given.most:
        raise UserError(f"--most={given.most}: each NN worker needs a sample of train.batch_size={run.train.batch}")
    processors = sorted(os.sched_getaffinity(0))
    runs = {ONE: with_replicas(run, ROLES[0], 1, processors)}
    cases = {f"{count} {role}s": (role, count) for role in ROLES for count in counts_up_to(given.most)}
    runs |= {name: with_replicas(run, *case, processors) for name, case in cases.items()}
    with idle_jobs(runs, steps, given.rounds, note) as jobs:
        takers = {name: job.turn for name, job in jobs.items()}
        turns = take_turns(takers, given.rounds, note, lambda: sum(job.cpu_seconds() for job in jobs.values()))
    one = side_of(ONE, turns[ONE], run.train.batch)
    for name, (role, count) in cases.items():
        speed_up = round_ratio(turns[name], turns[ONE])
        ratios = {ONE: speed_up, "linear": speed_up / count}
        side = replace(side_of(name, turns[name], run.train.batch), ratios=ratios)
        cpu_us = [sum(_of_role(each.cpu_ms, role)) * 1e3 / run.train.batch for each in (side, one)]
        note_of_role = f"CPU time per sample of all {role}s: {cpu_us[0]:.2f} us, of one {cpu_us[1]:.2f} us"
        yield Result("", name, "samples/s", [side, one], given.rounds, steps, note=note_of_role)


def _of_role(cpu_ms: dict[str, float], role: str) -> list[float]:
    return [ms for name, ms in cpu_ms.items() if name.rpartition("-")[0] == role]

"""`persia bench scaling`: a job with one replica of each role, and with more of one role."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle

from persia_cli.bench.capacity import round_ratio
from persia_cli.bench.idle_jobs import alternate, idle_jobs
from persia_cli.bench.result import Result, Side
from persia_cli.bench.rounds import side_of
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.plan.job import all_replicas

ROLES = ("embedding-server", "embedding-worker", "data-loader", "nn-worker")
SPEED_UP, LINEAR = "one replica", "linear"
"""Names of the ratios of a side: to the job with one replica of each role, and to as many times its speed."""


def counts_up_to(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and `most` itself."""
    return sorted({2**power for power in range(most.bit_length())} | {most})


def with_replicas(run: Run, role: str, count: int, processors: Sequence[int]) -> Run:
    """Return the run with `count` replicas of a role, one of each other role, and each on its own processor.

    Several replicas share a processor where processors are fewer. An NN worker has `train.threads` processors.
    """
    counts = dict.fromkeys(ROLES, 1) | {role: count}
    following = cycle(processors)

    def taken(each: str) -> str:
        wanted = run.train.threads if each == "nn-worker" else 1
        return ",".join(str(next(following)) for _ in range(min(wanted, len(processors))))

    pins = {each: tuple(taken(each) for _ in range(number)) for each, number in counts.items()}
    settings = {f"{each.replace('-', '_')}s": number for each, number in counts.items()}
    cluster = run.cluster.model_copy(
        update=settings | {"pin": {each.replace("-", "_"): pin for each, pin in pins.items()}}
    )
    return run.model_copy(update={"cluster": cluster})


def measure_scaling(run: Run, most: int, steps: int, rounds: int, note: Callable[[str], None]) -> Iterator[Result]:
    """Vary the replicas of one role at a time from 1 to `most`, all jobs in alternating turns; yield each role.

    Raise UserError for runs that cannot be measured like this.
    """
    if any(run.cluster.processors_of(replica.role, replica.index) for replica in all_replicas(run)):
        raise UserError("this benchmark pins every replica to a processor; leave out cluster.pin")
    if run.train.batch < most:
        raise UserError(f"--most={most}: each NN worker needs a sample of train.batch_size={run.train.batch}")
    processors = sorted(os.sched_getaffinity(0))
    one = "with one of each"
    runs = {one: with_replicas(run, ROLES[0], 1, processors)}
    cases = [(role, count) for role in ROLES for count in counts_up_to(most) if count > 1]
    names = {case: f"with {case[1]} {case[0]}s" for case in cases}
    runs |= {names[case]: with_replicas(run, *case, processors) for case in cases}
    with idle_jobs(runs, steps, rounds, note) as jobs:
        taken = alternate(jobs, rounds, note)
    base = side_of("1", taken[one], run.train.batch)
    for role in ROLES:
        sides = [replace(base, ratios={SPEED_UP: 1.0, LINEAR: 1.0})]
        for case in cases:
            if case[0] == role:
                speed_up = round_ratio(taken[names[case]], taken[one])
                side = side_of(str(case[1]), taken[names[case]], run.train.batch)
                sides.append(replace(side, ratios={SPEED_UP: speed_up, LINEAR: speed_up / case[1]}))
        yield Result(role, run.name, "samples/s", sides, rounds, steps)


def cpu_us_per_sample(side: Side, role: str, batch_size: int) -> float:
    """Return the CPU time per sample of all replicas of a role, in microseconds."""
    return sum(ms for name, ms in side.cpu_ms.items() if name.rpartition("-")[0] == role) * 1e3 / batch_size

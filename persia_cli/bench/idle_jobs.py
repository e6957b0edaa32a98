"""Several jobs that are started once and then train in alternating turns, one at a time."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from persia_cli.bench.rounds import TurnFigures, take_turns
from persia_cli.bench.turns import TurnJob
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import inspect
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import UserError


@contextmanager
def idle_jobs(
    runs: Mapping[str, Run], steps: int, rounds: int, note: Callable[[str], None], evaluate: bool = False
) -> Iterator[dict[str, TurnJob]]:
    """Start a job for each run, for a round to warm up and `rounds` rounds; all processes end with the context.

    Raise UserError if the jobs are not processes of this machine.
    """
    if not all(run.cluster.has_processes_here for run in runs.values()):
        raise UserError("this benchmark measures processes of this machine; use cluster=local")
    with terminating_interrupts(), ExitStack() as exit_stack:
        jobs = {}
        for name, run in runs.items():
            note(f"starting the job {name}")
            job = TurnJob(run, inspect(run.dataset), steps, rounds + 1, ring=0, evaluate=evaluate)
            jobs[name] = exit_stack.enter_context(job)
        yield jobs


def alternate(
    jobs: Mapping[str, TurnJob],
    rounds: int,
    note: Callable[[str], None],
    turn: Callable[[TurnJob], TurnFigures] = TurnJob.turn,
) -> dict[str, list[TurnFigures]]:
    """Let the jobs train in alternating turns; return the measurements of each."""
    takers = {name: (lambda job=job: turn(job)) for name, job in jobs.items()}
    return take_turns(takers, rounds, note, lambda: sum(job.cpu_seconds() for job in jobs.values()))

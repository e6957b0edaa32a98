"""Rollback on machines that ssh reaches: a training that has lost a process or a machine goes on from its checkpoint.

What is left of the job ends too, and all replicas begin again, on the machines that ssh still reaches.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.control.restarts import RestartPolicy
from persia_cli.engines.hosts.job import FIRST
from persia_cli.engines.hosts.machines import reached
from persia_cli.engines.hosts.placement import placement_of, settings_of
from persia_cli.engines.job import JOB
from persia_cli.engines.role import read_job
from persia_cli.engines.rollback import wait_before_rollback
from persia_cli.errors import KilledError, PersiaError, one_line
from persia_cli.observe.journal import EVENTS, read_journal, understanding

Say = Callable[[str], None]


def run_with_rollback(
    begin: Callable[[], None], go_on: Callable[[Run], None], run: Run, run_dir: Path, say: Say
) -> None:
    """Run a job by `begin`, and by `go_on` with the run as it is then each time that it loses a process or a machine.

    `say` is called with a sentence about each rollback. Raises what the two do, and the KilledError of a job that
    cannot go back, or did so `recovery.max_restarts` times within `recovery.window_s`.
    """
    policy = RestartPolicy(run.recovery.max_restarts, run.recovery.window_s)
    under_way, step = begin, None
    while True:
        try:
            return under_way()
        except KilledError as death:
            # A job that has gone back once may have saved nothing since then.
            newest = newest_step(run_dir)
            step = step if newest is None else newest
            run = _gone_back(run, step, death, policy, say)
            under_way = partial(go_on, run)


def newest_step(run_dir: Path) -> int | None:
    """Return the step of the newest checkpoint that a job has written or begun with, as far as its record says."""
    with understanding(run_dir):
        saved = [int(event["step"]) for event in read_journal(run_dir / EVENTS) if event["event"] == "saved"]
    if saved:
        return saved[-1]
    try:
        job = read_job(run_dir / JOB)
    except PersiaError:
        return None
    return job.first_step if job.load else None


def _gone_back(run: Run, step: int | None, death: KilledError, policy: RestartPolicy, say: Say) -> Run:
    """Return the run to go on with when it is time to; raises the death if that is not possible or once too often."""
    if not policy.max_restarts:
        raise death
    try:
        run, left_out = without_lost(run)
    except PersiaError as error:
        death.add_note(f"The job cannot go on: {one_line(error)}.")
        raise death from error
    wait_s = wait_before_rollback(policy, death)
    elsewhere = f" without {' and '.join(left_out)}" if left_out else ""
    pause = f" in {wait_s:g} s" if wait_s else ""
    begin = "its start, since it has no checkpoint" if step is None else f"the checkpoint of step {step:,}"
    say(f"{one_line(death)}; the job goes on{elsewhere}{pause} from {begin}")
    time.sleep(wait_s)
    return run


def without_lost(run: Run) -> tuple[Run, list[str]]:
    """Return the run on the machines that ssh reaches now, and the names of the others.

    Raises PersiaError if the coordinator's machine is not reached, or if there is no other for a replica.
    """
    cluster = settings_of(run)
    left = reached(cluster, cluster.hosts)
    lost = [host.ssh for host in cluster.hosts if host not in left]
    changed = run.model_copy(update={"cluster": cluster.model_copy(update={"hosts": tuple(left)})})
    first = next(iter(placement_of(run).values()))
    if first not in left:
        raise PersiaError(f"{first.ssh}, which has the record of the run and {FIRST}, is not reached by ssh")
    placement_of(changed)
    return changed, lost

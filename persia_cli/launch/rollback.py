"""Rollback: a training that the death of a process has ended goes on from its newest checkpoint, in the same command.

The processes that are left end too, and a new job begins: the model, the position in the data and the figures are all
those of one consistent cut, so the result is that of `persia resume`.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from persia_cli.control.restarts import RestartPolicy
from persia_cli.errors import CheckpointError, KilledError, count, one_line
from persia_cli.launch.job import JobResult
from persia_cli.launch.resumed import newest_of
from persia_cli.launch.signals import JobSignals
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.plan.job import JobPlan, Rollback
from persia_cli.storage.places import address_of, place_of
from persia_cli.store.manifest import checkpoints_of, read_manifest, step_of

JOB = "the job"
"""The name under which the job as a whole has its restarts counted."""


def launch_with_rollback(
    plan: JobPlan, launch: Callable[[JobPlan], JobResult], report: Callable[[str], None]
) -> JobResult:
    """Run a job to its end by `launch`, which returns or raises what launchers do, again from its newest checkpoint
    each time that a process is killed.

    `report` is called with a sentence about each rollback. Raises the KilledError of a job that cannot be rolled back
    or was rolled back `recovery.max_restarts` times within `recovery.window_s`.
    """
    policy = RestartPolicy(plan.run.recovery.max_restarts, plan.run.recovery.window_s)
    while True:
        try:
            return launch(plan)
        except KilledError as death:
            # Between two jobs too, a signal that ends this one is told what goes on.
            with JobSignals().handled():
                plan = _go_back(plan, death, policy, report)


def _go_back(plan: JobPlan, death: KilledError, policy: RestartPolicy, report: Callable[[str], None]) -> JobPlan:
    """Return the plan to go on with when it is time to; raises the death if that is not possible or once too often."""
    try:
        back = rolled_back(plan, death)
    except CheckpointError as error:
        death.add_note(f"The job cannot go back to its newest checkpoint: {error}.")
        raise death from error
    if back is None or back.job.rollback is None or not policy.max_restarts:
        raise death
    wait_s = wait_before_rollback(policy, death)
    report(_sentence(back.job.rollback, wait_s))
    time.sleep(wait_s)
    return back


def wait_before_rollback(policy: RestartPolicy, death: KilledError) -> float:
    """Return the seconds until a job goes back to a checkpoint; raises its death if it did so too often."""
    wait_s = policy.next(JOB, time.monotonic())
    if wait_s is None:
        often = f"{count(policy.max_restarts, 'time')} within {policy.window_s:g} s"
        death.add_note(f"The job has gone back to a checkpoint {often} (recovery.max_restarts).")
        raise death
    return wait_s


def rolled_back(plan: JobPlan, death: KilledError) -> JobPlan | None:
    """Return the plan to go on from the newest checkpoint after a death; None if there is none, or it is not wanted.

    Raises CheckpointError if it is damaged.
    """
    wanted = plan.job.task == "train" and plan.job.benchmark is None
    newest = newest_of(checkpoints_of(plan.run_dir, plan.run.checkpoint.path)) if wanted else None
    if wanted and plan.is_resumed and (newest is None or step_of(newest) < plan.job.first_step):
        newest = place_of(plan.job.load or "")  # it is elsewhere, and nothing was saved since
    if newest is None:
        return None
    manifest = read_manifest(newest)
    step = manifest.step
    reached = max((line["step"] for line in read_journal(plan.run_dir / METRICS)), default=step)
    rollback = Rollback(death.replica, one_line(death), time.time(), step, max(0, reached - step))
    job = replace(
        plan.job,
        load=address_of(newest),
        first_step=step,
        evaluation_due=manifest.progress.evaluation_due,
        warm=None,
        rollback=rollback,
    )
    return replace(plan, job=job, resumes=plan.run_dir)


def _sentence(rollback: Rollback, wait_s: float) -> str:
    pause = f" in {wait_s:g} s" if wait_s else ""
    return (
        f"{rollback.cause}; the job goes on{pause} from the checkpoint of step {rollback.step:,} "
        f"(training again what came after it: {count(rollback.steps_again, 'recorded step')})"
    )

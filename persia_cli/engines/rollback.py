"""Rollback: after a death that costs memory, a training starts again from its newest checkpoint, or from its start.

All processes end, and a new job begins in the same command. The model, the position in the data and the metrics are
those of one consistent cut, so in sync mode the result is that of an undisturbed run.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from persia_cli.control.restarts import RestartPolicy
from persia_cli.engines.job import BEGINNING, JobResult
from persia_cli.engines.resumed import damage_of, has_failed_to_begin, newest_of, newest_sound, start_over
from persia_cli.engines.signals import JobSignals
from persia_cli.errors import CheckpointError, KilledError, PersiaError, count, one_line
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.plan.job import JobPlan, Rollback
from persia_cli.storage.locations import address_of, location_of
from persia_cli.store.checkpoints.manifest import checkpoints_of, read_manifest, step_of

JOB = "the job"
"""The name under which the job as a whole has its restarts counted."""


def launch_with_rollback(
    plan: JobPlan, launch: Callable[[JobPlan], JobResult], report: Callable[[str], None]
) -> JobResult:
    """Run a job to its end by `launch`, which returns or raises what `drive` does; roll it back after each kill.

    `report` is called with a sentence about each rollback. Raises the KilledError of a job that is no training, and of
    one that was rolled back `recovery.max_restarts` times within `recovery.window_s`.
    """
    policy = RestartPolicy(plan.run.recovery.max_restarts, plan.run.recovery.window_s)
    while True:
        try:
            return launch(plan)
        except PersiaError as error:
            # A signal between two jobs ends the command with the sentence of a signal.
            with JobSignals().handled():
                plan = _go_back(plan, error, policy, report)


def _go_back(plan: JobPlan, error: PersiaError, policy: RestartPolicy, report: Callable[[str], None]) -> JobPlan:
    """Return the plan to go on with when it is time to; raise the error if that is not possible or once too often.

    A start after a rollback that cannot load its checkpoint belongs to the death before.
    """
    death, before = error, plan.job.rollback
    if not isinstance(death, KilledError):
        if before is None or not _is_damaged(plan, error):
            raise error
        death = KilledError(before.cause, before.replica)
    try:
        back = rolled_back(plan, death, report, whole=death is not error)
    except CheckpointError as damage:
        death.add_note(f"The job cannot go back to its newest checkpoint: {damage}.")
        raise death from damage
    if back is None or back.job.rollback is None or not policy.max_restarts:
        raise death
    wait_s = wait_before_rollback(policy, death)
    report(_sentence(back, wait_s))
    time.sleep(wait_s)
    if not back.is_resumed:
        start_over(plan.run_dir, BEGINNING)
    return back


def _is_damaged(plan: JobPlan, error: PersiaError) -> bool:
    """Return True if a start has failed with an error because its checkpoint, the newest, is damaged."""
    newest = newest_of(checkpoints_of(plan.run_dir, plan.run.checkpoint.path))
    at_the_start = isinstance(error, CheckpointError) or has_failed_to_begin(plan.run_dir)
    return newest is not None and at_the_start and bool(damage_of(newest, whole=True))


def wait_before_rollback(policy: RestartPolicy, death: KilledError) -> float:
    """Return the seconds until a job goes back; raise its death if it did so too often."""
    wait_s = policy.next(JOB, time.monotonic())
    if wait_s is None:
        often = f"{count(policy.max_restarts, 'time')} within {policy.window_s:g} s"
        death.add_note(f"The job went back {often} (recovery.max_restarts).")
        raise death
    return wait_s


def rolled_back(
    plan: JobPlan, death: KilledError, report: Callable[[str], None], whole: bool = False
) -> JobPlan | None:
    """Return the plan to go on with after a death: from the newest checkpoint, or from the start if there is none.

    None for a job that is no training. Raises what `newest_sound` does.
    """
    if plan.job.task != "train" or plan.job.benchmark is not None:
        return None
    checkpoints = checkpoints_of(plan.run_dir, plan.run.checkpoint.path)
    newest = newest_sound(checkpoints, whole, report)
    if plan.is_resumed and (newest is None or step_of(newest) < plan.job.first_step):
        began = location_of(plan.job.load or "")
        if address_of(began.parent) != address_of(checkpoints):
            newest = began  # in another run, and nothing was saved since
    manifest = read_manifest(newest) if newest is not None else None
    step = manifest.step if manifest is not None else 0
    reached = max((line["step"] for line in read_journal(plan.run_dir / METRICS)), default=step)
    rollback = Rollback(death.replica, one_line(death), time.time(), step, max(0, reached - step))
    before = plan.job.rollback
    if before is not None and before.step == step and not rollback.steps_again:
        # It died again before it trained: the steps and the time since the first death are still to be made up for.
        rollback = replace(rollback, steps_again=before.steps_again, died_at=before.died_at)
    if newest is None or manifest is None:
        return replace(plan, job=replace(plan.job, rollback=rollback))
    job = replace(
        plan.job,
        load=address_of(newest),
        first_step=step,
        evaluation_due=manifest.progress.evaluation_due,
        warm=None,
        rollback=rollback,
    )
    return replace(plan, job=job, resumes=plan.run_dir)


def _sentence(plan: JobPlan, wait_s: float) -> str:
    rollback = plan.job.rollback
    assert rollback is not None
    pause = f" in {wait_s:g} s" if wait_s else ""
    begin = f"the checkpoint of step {rollback.step:,}" if plan.is_resumed else "its start, since it has no checkpoint"
    again = count(rollback.steps_again, "recorded step")
    return f"{rollback.cause}; the job goes on{pause} from {begin} ({again} to be trained again)"

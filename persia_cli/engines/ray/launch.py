"""The launcher of `cluster=ray`: a job from its first replica to its end, as that of this machine's processes."""

import time
from collections.abc import Callable

from persia_cli.engines.ray.cluster import connected
from persia_cli.engines.ray.job import RayJob
from persia_cli.launch.job import JobResult, prepared_run_dir, recorded_end, result_of
from persia_cli.launch.signals import JobSignals
from persia_cli.plan.job import JobPlan
from persia_cli.store.checkpoints.claim import remove_own_unfinished

POLL_S = 0.1


def launch(plan: JobPlan, follow: Callable[[], None] = lambda: None) -> JobResult:
    """Run the job to its end, calling `follow()` from this thread about ten times a second.

    Signals and failures are those of `persia_cli.launch.local.launch`; KilledError also tells of lost actors and
    machines. Nothing outlives this process.
    """
    signals = JobSignals()
    with (
        connected(plan.run) as cluster,
        signals.handled(),
        prepared_run_dir(plan),
        recorded_end(plan.run_dir, signals),
    ):
        job = RayJob(plan, cluster)
        try:
            job.start(follow)
            signals.trains = True
            while job.running:
                if signals.name:
                    job.end_with_model()
                job.poll()
                follow()
                time.sleep(POLL_S)
            job.check()
        finally:
            try:
                job.stop()
            finally:
                remove_own_unfinished(plan.run_dir, plan.run.checkpoint.path)
                follow()
    return result_of(plan.run_dir)

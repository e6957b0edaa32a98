"""The phases of a planned job, and which replicas take part in each."""

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import EvaluationTracker
from persia_cli.control.phases import PhaseKind, PhaseMachine, evaluation_only, in_turns, prediction_only, schedule
from persia_cli.plan.job import DRIVER, Job, expected_replicas


def participants(run: Run, job: Job) -> dict[str, int]:
    """Return the number of replicas of each role that the coordinator waits for."""
    return expected_replicas(run) | ({DRIVER: 1} if job.benchmark else {})


def job_phases(run: Run, job: Job, tracker: EvaluationTracker) -> PhaseMachine:
    """Return the state machine of the job's phases; in training `tracker` decides on saves and the end."""
    if job.task == "train":
        phases = schedule(
            job.steps, job.eval_steps, run.eval.every_steps, run.checkpoint.every_steps, run.checkpoint.at_end, tracker
        )
        if job.benchmark:
            phases = in_turns(phases, job.benchmark.turn_steps)
    elif job.task == "evaluate":
        phases = evaluation_only(job.eval_steps)
    else:
        phases = prediction_only(job.eval_steps)
    ranks = frozenset(f"nn-worker-{i}" for i in range(run.cluster.nn_workers))
    servers = frozenset(f"embedding-server-{i}" for i in range(run.cluster.embedding_servers))
    everyone = frozenset(f"{role}-{i}" for role, count in participants(run, job).items() for i in range(count))
    taking_part: dict[PhaseKind, frozenset[str]] = {
        "training": ranks,
        "evaluating": ranks,
        "predicting": ranks,
        "saving": servers | {"nn-worker-0"},
        "paused": frozenset({f"{DRIVER}-0"}),
        "done": everyone,
    }
    return PhaseMachine(phases, taking_part)

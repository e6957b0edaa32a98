"""The metrics of a run's evaluations, and the decisions that they make."""

from persia_cli.config.schema import PlateauSchedule, Run
from persia_cli.control.evaluation_tracker import Best, EvaluationTracker, Part, Plateau
from persia_cli.metric import Aim, metrics_of
from persia_cli.plan.columns import has_query_ids


def metric_aims(run: Run) -> dict[str, Aim]:
    """Return every metric of a run's evaluations, and which of its values are better."""
    return metrics_of(run.links, has_query_ids(run), run.eval.lists)


def tracker_of(run: Run) -> EvaluationTracker:
    """Return the tracker of a run's evaluations."""
    aims, early, metric = metric_aims(run), run.train.early_stop, run.checkpoint.best_by
    stop = Best(early.metric, aims[early.metric], early.min_delta) if early else None
    keep = Best(metric, aims[metric]) if metric else None
    plateaus = [
        Plateau(part, Best(by, aims[by], early.min_delta if early else 0.0), schedule.factor, schedule.floor)
        for part, schedule, by in _plateaus(run)
    ]
    return EvaluationTracker(stop, early.patience if early else 1, keep, plateaus)


def _plateaus(run: Run) -> list[tuple[Part, PlateauSchedule, str]]:
    """Return the schedules that reduce a learning rate, the part of the model with that rate, and the metric."""
    parts: dict[Part, object] = {"dense": run.optimizer.dense.schedule, "embedding": run.optimizer.embedding.schedule}
    return [(p, schedule, run.plateau_metric) for p, schedule in parts.items() if isinstance(schedule, PlateauSchedule)]

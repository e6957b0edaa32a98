"""What a checkpoint has of the evaluations so far."""

from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.wire.figures import TrackedFigure, TrackedPlateau


def tracked_by(tracker: EvaluationTracker) -> list[TrackedFigure]:
    """Return the best figures so far."""
    return [_figure(best) for best in tracker.tracked]


def plateaus_of(tracker: EvaluationTracker) -> tuple[TrackedPlateau, ...]:
    """Return the state of schedules that go by evaluations."""
    return tuple(TrackedPlateau(each.of, _figure(each.best), each.reductions) for each in tracker.plateaus)


def _figure(best: Best) -> TrackedFigure:
    return TrackedFigure(best.metric, best.step, best.value, best.since)

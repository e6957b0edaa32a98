"""The tracker: which evaluation is the best, and when training is to end."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from persia_cli.control.evaluation_tracker import Best, EvaluationTracker, Plateau
from persia_cli.control.phases import Phase, schedule
from persia_cli.plan.evaluations import tracker_of
from tests.support.runs import make_run

FIGURES = st.floats(0.0, 2.0) | st.none()


@pytest.mark.parametrize(
    ("aim", "figures", "better"),
    [
        ("high", [0.7, 0.6, 0.7, 0.71], [True, False, False, True]),
        ("low", [0.5, 0.6, 0.4, 0.4], [True, False, True, False]),
        ("one", [0.5, 1.4, 1.7, 0.8, 1.0, 0.9], [True, True, False, True, True, False]),
    ],
)
def test_each_metric_has_its_aim(aim, figures, better):
    best = Best("figure", aim)
    assert [best.add(step, value) for step, value in enumerate(figures)] == better


def test_a_gain_of_no_more_than_min_delta_is_none_and_adds_up():
    best = Best("auc", "high", min_delta=0.25)
    assert [best.add(step, value) for step, value in enumerate([0.25, 0.5, 0.5, 0.625])] == [True, False, False, True]
    assert (best.step, best.value, best.since) == (3, 0.625, 0)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_an_undefined_metric_is_never_the_best(value):
    best = Best("auc", "high")
    assert [best.add(0, value), best.add(1, 0.1), best.add(2, value)] == [False, True, False]
    assert best.since == 1


@pytest.mark.parametrize("value", [None, math.nan])
def test_missing_metrics_are_named_with_their_undecided_decisions(value):
    plateau = Plateau("dense", Best("loss", "low"), 0.1, 0.0)
    tracker = EvaluationTracker(Best("auc", "high"), 2, Best("auc", "high"), [plateau])
    assert tracker.undecided({"auc": 0.5, "loss": 0.4}) == []
    assert tracker.undecided({"auc": value, "loss": value}) == [("auc", "best"), ("auc", "stop"), ("loss", "dense")]
    assert EvaluationTracker().undecided({"auc": None}) == []


@given(st.lists(FIGURES, max_size=20), st.integers(1, 4))
def test_training_ends_once_so_many_evaluations_in_a_row_were_no_better(figures, patience):
    tracker = EvaluationTracker(Best("auc", "high"), patience)
    for number, value in enumerate(figures, 1):
        tracker.add(number, {"auc": value})
        tops = [max((v for v in figures[:n] if v is not None), default=-1.0) for n in range(number + 1)]
        in_a_row = next((n for n in range(number) if tops[number - n] > tops[number - n - 1]), number)
        assert tracker.over == (in_a_row >= patience)


def test_a_run_that_stops_early_retains_the_best_weights():
    stop = {"metric": "auc", "patience": 2, "min_delta": 0.1}
    best = {"best_by": "auc"}
    run = make_run(eval={"every_steps": 5}, train={"batch_size": 32, "stop_early": stop}, checkpoint=best)
    tracker = tracker_of(run)
    told = []
    for step, auc in ((5, 0.6), (10, 0.65), (15, 0.64)):
        tracker.add(step, {"auc": auc})
        told.append((tracker.improved, tracker.over))
    # The metric of the early stop has to rise by more than 0.1; the retained model is the very best.
    assert told == [(True, False), (True, False), (False, True)]
    assert tracker.best_at(10) is tracker.best
    again = tracker_of(run)
    again.restore([(each.metric, each.step, each.value, each.since) for each in tracker.tracked])
    assert again.tracked == tracker.tracked


@pytest.mark.parametrize(("floor", "falls"), [(1e-2, [1, 2]), (0.5, [1]), (1e-6, [1, 2, 3, 4, 5])])
def test_a_learning_rate_falls_until_it_is_at_its_floor(floor, falls):
    plateau = {"kind": "reduce_on_plateau", "floor": floor}
    dense = {"kind": "sgd", "lr": 1e-3, "schedule": plateau}
    run = make_run(eval={"every_steps": 5}, optimizer={"embedding": {"kind": "sgd", "lr": 0.1}, "dense": dense})
    tracker = tracker_of(run)
    told = []
    for number in range(6):
        tracker.add(5 * number, {"auc": 0.5})
        told += [number] if tracker.plateaus[0].reduced else []
    assert (told, tracker.reductions) == (falls, (len(falls), 0))


def test_auc_of_several_labels_is_their_mean():
    run = make_run(
        dataset={"labels": ["click", "buy"]},
        eval={"every_steps": 5},
        checkpoint={"best_by": "auc"},
        train={"batch_size": 32, "stop_early": {"metric": "auc", "patience": 2}},
    )
    tracker = tracker_of(run)
    for step, (click, buy) in enumerate([(0.8, 0.6), (0.7, 0.8), (0.85, 0.6), (0.99, None)]):
        tracker.add(step, {"auc_click": click, "auc_buy": buy})
    assert (tracker.best.step, tracker.best.value) == (1, pytest.approx(0.75))
    assert tracker.over


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"checkpoint": {"best_by": "accuracy"}},
            "checkpoint.best_by=accuracy: no such metric; did you mean accuracy_buy. there are auc_click, ",
        ),
        (
            {"checkpoint": {"best_by": "gauc_buy"}},
            "checkpoint.best_by=gauc_buy needs query ids; set dataset.gr",
        ),
    ],
)
def test_metrics_that_a_run_cannot_use(changes, told):
    with pytest.raises(ValidationError, match=told):
        make_run(**{"dataset": {"labels": ["click", "buy"]}, "eval": {"every_steps": 5}} | changes)


def phases_of(figures, *, save_every=None, at_end=True, stop=None, keep=None, patience=2) -> list[Phase]:
    """The phases of 10 steps, evaluated every 2, whose evaluations have these metrics; of eval and train steps."""
    tracker = EvaluationTracker(stop, patience, keep)
    phases, told = [], iter(figures)
    for phase in schedule(10, 1, eval_every=2, save_every=save_every, save_at_end=at_end, tracker=tracker):
        phases.append(phase)
        if phase.kind == "evaluating":
            tracker.add(phases[-2].last, {"auc": next(told)})
    return phases


def saved(phases: list[Phase]) -> list[int]:
    """The steps that are saved, each once; a second phase of a step only notes its evaluation."""
    return list(dict.fromkeys(phase.last for phase in phases if phase.kind == "saving"))


def test_a_schedule_ends_early_evaluated_and_saved_as_at_the_end():
    phases = phases_of([0.7, 0.69, 0.7], stop=Best("auc", "high"))
    assert phases[-4:] == [Phase("training", 4, 6), Phase("evaluating", 2, 3), Phase("saving", last=6), Phase("done")]
    assert saved(phases) == [6]
    assert saved(phases_of([0.7, 0.69, 0.7], stop=Best("auc", "high"), at_end=False)) == []
    assert phases_of([0.7, 0.6, 0.8, 0.7, 0.7], stop=Best("auc", "high")) == phases_of([0.5] * 5)


def test_a_schedule_saves_the_best_and_each_step_but_once():
    keep = [Best("auc", "high") for _ in range(3)]
    assert saved(phases_of([0.5, 0.7, 0.6, 0.6, 0.6], keep=keep[0])) == [2, 4, 10]
    assert saved(phases_of([0.5, 0.4, 0.6, 0.6, 0.7], keep=keep[1])) == [2, 6, 10]
    assert saved(phases_of([0.5, 0.4, 0.6, 0.6, 0.5], keep=keep[2], save_every=3, at_end=False)) == [2, 3, 6, 9]


@given(st.lists(FIGURES, min_size=1, max_size=12), st.data())
def test_a_restored_tracker_decides_as_the_first_one_would(figures: list[float | None], data: st.DataObject) -> None:
    keep = data.draw(st.sampled_from([Best("ne", "low"), Best("auc", "high")]))

    def tracker() -> EvaluationTracker:
        return EvaluationTracker(Best("auc", "high", min_delta=0.1), 2, replace(keep))

    whole, first, second = tracker(), tracker(), tracker()
    half = data.draw(st.integers(0, len(figures)))
    for step, figure in enumerate(figures[:half]):
        first.add(step, {"auc": figure, "ne": figure})
    untracked = ("a metric that is no longer tracked", 3, 0.5, 1)
    second.restore([*((best.metric, best.step, best.value, best.since) for best in first.tracked), untracked])
    for step, figure in enumerate(figures):
        whole.add(step, {"auc": figure, "ne": figure})
        if step >= half:
            second.add(step, {"auc": figure, "ne": figure})
            assert (second.over, second.improved) == (whole.over, whole.improved)
    assert second.tracked == whole.tracked

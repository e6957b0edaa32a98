"""What a job does one after the other, and when a phase is over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.phases import Phase, PhaseMachine, evaluation_only, schedule

maybe = st.none() | st.integers(1, 40)


@given(st.integers(1, 60), st.integers(0, 5), maybe, maybe, st.booleans())
def test_every_step_is_trained_once_and_evaluations_and_saves_are_where_they_belong(
    steps, eval_steps, eval_every, save_every, save_at_end
):
    phases = list(schedule(steps, eval_steps, eval_every, save_every, save_at_end))
    trained = [phase for phase in phases if phase.kind == "training"]
    assert [step for phase in trained for step in range(phase.first, phase.last)] == list(range(steps))
    assert all(phase.first < phase.last for phase in trained)

    evaluated, saved, position = [], [], 0
    for phase in phases:
        if phase.kind == "training":
            position = phase.last
        elif phase.kind == "evaluating":
            assert (phase.first, phase.last) == (len(evaluated) * eval_steps, (len(evaluated) + 1) * eval_steps)
            evaluated.append(position)
        elif phase.kind == "saving":
            assert phase.last == position
            saved.append(position)

    def due(every, at_end):
        return [step for step in range(1, steps + 1) if (every and step % every == 0) or (at_end and step == steps)]

    assert evaluated == (due(eval_every, True) if eval_steps else [])
    assert saved == due(save_every, save_at_end)
    assert [phase.kind for phase in phases].index("done") == len(phases) - 1


def test_evaluation_comes_before_saving():
    phases = schedule(4, eval_steps=2, eval_every=2, save_every=2, save_at_end=True)
    assert list(phases) == [
        Phase("training", 0, 2),
        Phase("evaluating", 0, 2),
        Phase("saving", last=2),
        Phase("training", 2, 4),
        Phase("evaluating", 2, 4),
        Phase("saving", last=4),
        Phase("done"),
    ]


def test_an_evaluation_alone():
    assert list(evaluation_only(3)) == [Phase("evaluating", 0, 3), Phase("done")]


def machine() -> PhaseMachine:
    ranks = frozenset({"nn-worker-0", "nn-worker-1"})
    participants = {"training": ranks, "done": ranks | {"data-loader-0"}}
    return PhaseMachine(iter([Phase("training", 0, 5), Phase("done")]), participants)


def test_a_phase_is_over_when_every_participant_has_said_so_once():
    phases = machine()
    assert phases.advance() == Phase("training", 0, 5)
    assert not phases.finish("nn-worker-1", 1)
    assert not phases.finish("nn-worker-1", 1)
    assert not phases.finish("data-loader-0", 1)
    assert phases.finish("nn-worker-0", 1)
    assert not phases.finish("nn-worker-0", 1)


def test_a_report_of_another_phase_changes_nothing():
    phases = machine()
    phases.advance()
    assert not phases.finish("nn-worker-0", 2)
    assert phases.waiting == {"nn-worker-0", "nn-worker-1"}
    phases.finish("nn-worker-0", 1)
    assert phases.finish("nn-worker-1", 1)
    assert phases.advance() == Phase("done")
    assert not phases.finish("nn-worker-0", 1)
    assert phases.waiting == {"nn-worker-0", "nn-worker-1", "data-loader-0"}
    with pytest.raises(StopIteration):
        phases.advance()

"""Phases of training on data that grows: each portion once and in order, whenever it comes, and an end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.phases import PendingRequests, Phase, schedule_of_portions
from persia_cli.control.portions import KEPT, PlannedPortion, Portions
from persia_cli.control.position import StepGrid

SIZE = 8


def portion(before: PlannedPortion | None, rows: int) -> PlannedPortion:
    """Return the portion after another one."""
    first_step = before.end if before else 0
    sample = before.first_sample + before.rows if before else 0
    return PlannedPortion(before.number + 1 if before else 1, first_step, -(-rows // SIZE), sample, rows, [], "", 0.0)


def grow(portions: Portions, rows: list[int]) -> list[PlannedPortion]:
    added: list[PlannedPortion] = []
    for count in rows:
        added.append(portion(added[-1] if added else None, count))
        portions.add(added[-1])
    return added


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9))
def test_steps_and_samples_of_portions_have_no_gap(rows: list[int]) -> None:
    portions, added = Portions(SIZE, 0, 0), list[PlannedPortion]()
    for count in rows:
        added.append(portion(added[-1] if added else None, count))
        portions.add(added[-1])
        assert portions.last == added[-1].end
        assert len(portions.from_number(0)) == min(len(added), KEPT)
        for known in added[-KEPT:]:
            grid = StepGrid(known.rows, SIZE, 2, known.first_step, known.number, known.first_sample)
            for step in range(known.first_step, known.first_step + grid.steps):
                assert portions.of(step) == known
                number, start, stop = grid.locate(step)
                assert (number, portions.samples_before(step)) == (known.number, known.first_sample + start)
                assert 0 < stop - start <= SIZE
        assert portions.samples_before(portions.last) == sum(rows[: len(added)])
        assert portions.of(portions.last) is None


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.none() | st.integers(1, 9),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_each_portion_is_scored_and_trained_once(rows: list[int], save_every: int | None, scores: bool, turn) -> None:
    portions, last, left = Portions(SIZE, 0, 0), None, list(rows)
    phases: list[Phase] = []
    for phase in schedule_of_portions(
        portions, 0, steps=10**6, scores_next=scores, save_every=save_every, save_at_end=True
    ):
        phases.append(phase)
        if phase.kind == "idle" or (left and turn.random() < 0.5 and portions.ahead_of(phase.last) < KEPT - 1):
            if left:
                last = portion(last, left.pop(0))
                portions.add(last)
            elif phase.kind == "idle":
                portions.end = portions.last
    trained = [step for phase in phases if phase.kind == "training" for step in range(phase.first, phase.last)]
    assert trained == list(range(portions.last))
    evaluated = [(phase.first, phase.last) for phase in phases if phase.kind == "evaluating"]
    assert len(evaluated) == (len(rows) if scores else 0)
    assert all(before[1] == after[0] for before, after in pairwise(evaluated))
    saved = [phase.last for phase in phases if phase.kind == "saving"]
    wanted = {portions.last, *(range(save_every, portions.last, save_every) if save_every else ())}
    assert saved == sorted(wanted)
    assert phases[-1] == Phase("done")


def test_an_evaluation_comes_before_its_portion_and_not_again_after_a_resume() -> None:
    def kinds(first: int, due: bool) -> list[str]:
        portions = Portions(SIZE, first, first * SIZE)
        grow(portions, [2 * SIZE, 2 * SIZE])
        portions.end = 4
        phases = schedule_of_portions(portions, first, steps=100, scores_next=True, evaluation_due=due)
        return [phase.kind for phase in phases]

    rest = ["evaluating", "training", "done"]
    assert kinds(0, due=False) == ["evaluating", "training", *rest]
    assert kinds(1, due=False) == ["training", *rest]
    assert kinds(2, due=True) == rest
    assert kinds(2, due=False) == rest[1:], "it was saved after its evaluation"


def test_training_ends_within_a_portion_and_after_a_request() -> None:
    portions = Portions(SIZE, 0, 0)
    [first] = grow(portions, [10 * SIZE])
    portions.end = portions.end_after(3 * SIZE + 1, first)
    phases = list(schedule_of_portions(portions, 0, steps=100, save_at_end=True))
    assert phases == [Phase("training", 0, 4), Phase("saving", last=4), Phase("done")]

    portions = Portions(SIZE, 5, 5 * SIZE)
    portions.end = 4
    assert list(schedule_of_portions(portions, 5, steps=100, is_saved=True)) == [Phase("done")]

    requests, portions = PendingRequests(), Portions(SIZE, 0, 0)
    generator = schedule_of_portions(portions, 0, steps=100, requests=requests)
    assert next(generator).kind == "idle"
    requests.end = True
    assert [phase.kind for phase in generator] == ["done"]

"""The account of a server that has lost its memory, against a model that knows every update."""

import random

import numpy as np
import pytest

from persia_cli.control.position import TRAIN
from persia_cli.control.watermarks import Watermarks
from persia_cli.errors import WireError
from persia_cli.plan.job import Reload
from persia_cli.roles.lost_updates import LostUpdates, check_finished
from persia_cli.store.applied_steps import SPAN, AppliedSteps
from persia_cli.wire.figures import LOST, SINCE
from persia_cli.wire.job_messages import CutShort, EvaluateSteps, SaveModel, TrainSteps
from persia_cli.wire.messages import LookUp, Update
from persia_cli.wire.parts import BatchId

RANKS, BOUND = 2, 4


def in_memory(size: int, dtype: object) -> np.ndarray:  # type: ignore[type-arg]
    return np.zeros(size, dtype)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("seed", range(50))
def test_it_is_what_was_acknowledged_and_is_not_sent_again(seed: int) -> None:
    draw = random.Random(seed)
    since, died = draw.randrange(30), draw.randrange(30, 60)
    marks, kept = Watermarks(RANKS, last_step=since - 1), AppliedSteps(in_memory, RANKS)
    kept.begin(since - 1)
    phase_began = draw.choice([since, died - 20]) if draw.random() < 0.5 else 0
    lost = LostUpdates(marks, since, BOUND, Reload(phase_began, False, 3, 0), kept)
    applied, expected = 0, 0
    for rank in range(RANKS):
        # All steps before `finished` were acknowledged by all servers, and some of those in flight by this one.
        finished = died + draw.randrange(10)
        acknowledged = {step for step in range(finished, finished + BOUND) if draw.random() < 0.5}
        expected += finished - since + len(acknowledged)
        for step in range(finished, finished + 4 * BOUND):
            # What a rank knows when it asks for a step: at the worst, only what lets it begin that step.
            known = max(finished - draw.randrange(BOUND), step - BOUND) if step < finished + BOUND else step - BOUND + 1
            batch = BatchId(0, TRAIN, step, rank)
            lost.hear(LookUp(batch, True, known, []))
            if step in acknowledged:
                continue
            lost.hear(Update(batch, known, 0, []))
            assert marks.windows[rank].mark(step)
            kept.mark(rank, step)
            applied += 1
    assert lost.figures(applied) == {SINCE: since, LOST: expected}
    assert kept.windows() == [(window.watermark, window.above) for window in marks.windows]


def test_it_is_not_known_before_all_that_was_in_flight_is_past() -> None:
    marks = Watermarks(1, last_step=49)
    lost = LostUpdates(marks, 50, BOUND, Reload(0, False, 3, 0))
    lost.hear(Update(BatchId(0, TRAIN, 80, 0), 79, 0, []))
    lost.hear(LookUp(BatchId(0, TRAIN, 82, 0), False, 0, []))
    assert lost.figures(0) == {SINCE: 50}
    for step in range(80, 90):
        lost.hear(LookUp(BatchId(0, TRAIN, step, 0), True, step - 1, []))
        marks.windows[0].mark(step)
        assert (LOST in lost.figures(step - 79)) == (step >= 79 + 2 * BOUND)
    assert lost.figures(10)[LOST] == 30


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        ([(3, TrainSteps(40, 100)), (4, SaveModel("f", 100))], 50),
        ([(3, TrainSteps(40, 100)), (4, EvaluateSteps(0, 9))], 50),
        ([(3, TrainSteps(40, 100)), (4, CutShort(TRAIN, 70)), (5, EvaluateSteps(0, 9))], 20),
        ([(4, TrainSteps(60, 100))], 10),
        ([(3, TrainSteps(40, 100))], None),
        ([(3, SaveModel("f", 60))], None),
    ],
)
def test_a_phase_that_begins_after_the_death_tells_all(works: list[tuple[int, object]], expected: int | None) -> None:
    lost = LostUpdates(Watermarks(1, last_step=49), 50, BOUND, Reload(0, False, 3, 0))
    for number, work in works:
        lost.obey(number, work)  # type: ignore[arg-type]
    assert lost.figures(0).get(LOST) == expected
    if expected is None and isinstance(works[0][1], TrainSteps):
        lost.end()
        assert lost.figures(0)[LOST] == 50


def test_between_phases_it_is_known_at_once() -> None:
    assert LostUpdates(Watermarks(2, last_step=49), 50, BOUND, Reload(60, True, 3, 0)).figures(0)[LOST] == 20


def test_a_server_with_all_its_memory_believes_no_rank_that_is_ahead_of_it() -> None:
    batch = BatchId(0, TRAIN, 9, 0)
    check_finished(Update(batch, 8, 0, []), 7)
    with pytest.raises(WireError, match="counts the steps before 9 as finished"):
        check_finished(Update(batch, 9, 0, []), 7)


@pytest.mark.parametrize("ahead", [1, 100, SPAN - 1, SPAN, 3 * SPAN + 5])
def test_steps_are_skipped_in_a_memory_file_as_in_a_window(ahead: int) -> None:
    marks, kept = Watermarks(1), AppliedSteps(in_memory, 1)
    kept.begin(-1)
    for step in (3, 5, ahead + 2, ahead + 4):
        if step < 4096:
            marks.windows[0].mark(step)
            kept.mark(0, step)
    kept.mark_looked_up(0, 4)
    marks.windows[0].skip(ahead)
    kept.skip(0, ahead)
    kept.skip(0, ahead)
    assert kept.windows() == [(marks.windows[0].watermark, marks.windows[0].above)]
    looked_up = {step for step in range(ahead + 50) if kept.is_looked_up(0, step)}
    assert looked_up == ({4} if ahead < 4 else set())

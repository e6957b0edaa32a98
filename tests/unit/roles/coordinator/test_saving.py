"""Requests and signals that come in each phase: saved once, and answered with the place of the checkpoint."""

from typing import Any

import pytest

from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.wire.job_messages import SavedNow, SaveNow
from persia_cli.wire.server import Peer
from tests.support.coordination import Coordination
from tests.support.runs import make_run


def test_a_signal_does_not_discard_a_prediction_that_is_being_published() -> None:
    job = Coordination(make_run(), Job("predict", "run", None, 0, 96, 0, 3))
    job.context.phases.advance()
    requests = SaveRequests(job.context, "")
    job.context.phases.waiting.clear()
    requests.end("SIGTERM", "coordinator-0")
    assert (job.context.ending, job.context.stop_reason) == (None, None)


def test_a_failed_save_is_tried_again_after_seconds_and_the_last_one_for_an_hour() -> None:
    job = Coordination(make_run(), Job("train", "run", None, 128, 96, 4, 3))
    requests = SaveRequests(job.context, "")
    job.context.phases.advance()
    assert requests.retry(at_once=True) == 0.0
    requests.tick()
    assert job.context.requests.save == "minutes", "at once after a death"
    requests.note_saved({"event": "saved", "path": "run/step-1"})
    earlier = [requests.retry(at_once=False) for _ in range(5)]
    assert earlier == [5.0, 10.0, 20.0, 40.0, 60.0]
    job.now += 2 * 3600.0
    pauses = []
    while not requests.gives_up:
        pauses.append(requests.retry(at_once=False))
        assert requests.retries_later()
        job.now += pauses[-1]
        assert not requests.retries_later()
    assert 3600 < sum(pauses) <= 3660, "the hours before the last save do not count"


PEER = Peer(b"command", 1)


def next_phase(job: Coordination, requests: SaveRequests) -> str:
    phase = job.context.phases.advance()
    job.context.phases.waiting.clear()
    requests.note_begun(phase)
    return phase.kind


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        ({"event": "saved", "path": "run/checkpoints/step-4"}, SavedNow("run/checkpoints/step-4")),
        (
            {"event": "save_failed", "text": "the disk is full"},
            SavedNow("", "the checkpoint could not be written: the disk is full"),
        ),
    ],
)
def test_a_request_while_a_saved_step_is_evaluated_is_answered_by_that_checkpoint(
    event: dict[str, Any], answer: SavedNow
) -> None:
    job = Coordination(make_run(), Job("train", "run", None, 128, 96, 4, 3))
    requests = SaveRequests(job.context, "")
    assert [next_phase(job, requests), next_phase(job, requests)] == ["training", "saving"]
    job.context.phases.writing.clear()
    requests.note_saved(event)
    assert next_phase(job, requests) == "evaluating"
    requests.on_save_now(PEER, SaveNow())
    assert next_phase(job, requests) == "saving", "only the evaluation is new"
    job.context.phases.writing.clear()
    assert next_phase(job, requests) == "done"
    assert job.replies.to(PEER) == [answer]


@pytest.mark.parametrize(
    ("saved", "answer"), [("", SavedNow("", "nothing is trained yet")), ("run/step-8", SavedNow("run/step-8"))]
)
def test_a_request_before_training_is_answered_by_the_checkpoint_that_a_run_resumes(
    saved: str, answer: SavedNow
) -> None:
    job = Coordination(make_run(), Job("train", "run", None, 128, 96, 4, 3))
    SaveRequests(job.context, saved).on_save_now(PEER, SaveNow())
    assert job.replies.to(PEER) == [answer]

"""A save is prepared and published on the disk worker, while messages are handled."""

from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.save_requests import SaveRequests
from tests.support.coordination import Coordination
from tests.support.runs import make_run


def test_a_signal_does_not_discard_a_prediction_that_is_being_published() -> None:
    job = Coordination(make_run(), Job("predict", "run", None, 0, 96, 0, 3))
    job.context.phases.advance()
    requests = SaveRequests(job.context)
    job.context.phases.waiting.clear()
    requests.end("SIGTERM", "coordinator-0")
    assert (job.context.ending, job.context.stop_reason) == (None, None)

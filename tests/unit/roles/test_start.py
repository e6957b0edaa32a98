"""Starting a replica, and stopping it before there is a job."""

import logging
import uuid

import pytest

from persia_cli.plan.job import ROLES
from persia_cli.roles import link as links
from persia_cli.roles.link import Link
from persia_cli.roles.start import Stoppable, run_role
from persia_cli.wire.sockets import Context


def stop(link: Stoppable) -> None:
    """Tell a replica to stop."""
    assert isinstance(link, Link)
    link.stop = True


@pytest.mark.timeout(30)
@pytest.mark.parametrize("role", ROLES[1:])
def test_a_replica_without_a_job_can_be_stopped(role: str) -> None:
    with Context() as context:
        run_role(context, role, 0, f"inproc://{uuid.uuid4()}", on_start=stop)


@pytest.mark.timeout(30)
def test_a_replica_says_at_which_address_it_waits_for_a_coordinator_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(links, "LATE_S", 0.0)
    address, started = f"inproc://{uuid.uuid4()}", list[Link]()

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            started[0].stop = True

    handler = Said(logging.WARNING)
    links.log.addHandler(handler)
    try:
        with Context() as context:
            run_role(context, "data-loader", 0, address, on_start=lambda link: started.append(link))  # type: ignore[arg-type]
    finally:
        links.log.removeHandler(handler)
    assert f"waiting for the coordinator at {address}: no answer for 0 s" in caplog.text

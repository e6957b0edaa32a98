"""Starting a replica, and stopping it before there is a job."""

import logging
import uuid

import pytest

from persia_cli.plan.job import ROLES
from persia_cli.roles import session as links
from persia_cli.roles.session import CoordinatorSession
from persia_cli.roles.start import RoleStart, Stoppable, run_role
from persia_cli.wire.sockets import Context


def stop(session: Stoppable) -> None:
    """Signal a replica to stop."""
    assert isinstance(session, CoordinatorSession)
    session.stop = True


@pytest.mark.timeout(30)
@pytest.mark.parametrize("role", ROLES[1:])
def test_a_replica_without_a_job_can_be_stopped(role: str) -> None:
    with Context() as context:
        run_role(context, RoleStart(role, 0, f"inproc://{uuid.uuid4()}"), stop)


@pytest.mark.timeout(30)
def test_a_replica_names_the_address_of_an_unreachable_coordinator(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(links, "LATE_S", 0.0)
    address, started = f"inproc://{uuid.uuid4()}", list[CoordinatorSession]()

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            started[0].stop = True

    handler = Said(logging.WARNING)
    links.log.addHandler(handler)
    try:
        with Context() as context:
            run_role(context, RoleStart("data-loader", 0, address), started.append)
    finally:
        links.log.removeHandler(handler)
    assert f"waiting for the coordinator at {address}: no answer for 0 s" in caplog.text

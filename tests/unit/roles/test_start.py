"""Starting a replica, and stopping it before there is a job."""

import uuid

import pytest

from persia_cli.plan.job import ROLES
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

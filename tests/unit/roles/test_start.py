"""Starting a replica, and stopping it before there is a job."""

import uuid

import pytest

from persia_cli.plan.job import ROLES
from persia_cli.roles.link import Link
from persia_cli.roles.start import Stoppable, run_role
from persia_cli.wire.context import Context


def stop(link: Stoppable) -> None:
    """Tell a replica to stop."""
    assert isinstance(link, Link)
    link.stop = True


@pytest.mark.timeout(30)
@pytest.mark.parametrize("role", ROLES[1:])
def test_a_replica_without_a_job_can_be_stopped(role: str) -> None:
    with Context() as context:
        run_role(context, role, 0, f"inproc://{uuid.uuid4()}", on_start=stop)

"""The lines of kubectl for a job, and the commands that answer with them."""

from pathlib import Path

import pytest

from persia_cli.commands.follow import attach, stop
from persia_cli.engines.kubernetes.kubectl import attach_line, logs_line, stop_line
from persia_cli.errors import UserError


def test_a_job_is_shown_in_its_coordinators_container_and_ended_by_removing_it() -> None:
    shown = "kubectl exec -it job/shop-coordinator-0 -- persia attach /run/persia/runs/shop"
    assert attach_line("shop") == shown
    assert stop_line("shop") == "kubectl delete jobset shop --cascade=foreground"


@pytest.mark.parametrize(
    ("role", "selected"),
    [
        ("", ""),
        ("embedding-server", ",app.kubernetes.io/component=embedding-server"),
        ("nn-worker-1", ",app.kubernetes.io/component=nn-worker,batch.kubernetes.io/job-completion-index=1"),
    ],
)
def test_logs_are_those_of_all_of_a_role_or_of_a_replica(role: str, selected: str) -> None:
    line = f"kubectl logs --prefix --tail=-1 -l app.kubernetes.io/instance=shop{selected}"
    assert logs_line("shop", role) == line


def test_commands_without_a_run_name_what_a_job_on_kubernetes_needs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no.* run directory of a job; if .*: kubectl exec -it job/shop-coordinator-0"):
        attach(tmp_path / "shop")
    with pytest.raises(UserError, match=r"run directory of a job; if .* kubectl delete jobset shop --cascade"):
        stop(tmp_path / "shop")

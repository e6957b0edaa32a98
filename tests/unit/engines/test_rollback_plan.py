"""The decision to go back to a checkpoint after a death, without processes: how often, and what keeps it from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult
from persia_cli.engines.rollback import launch_with_rollback
from persia_cli.errors import KilledError
from persia_cli.plan.job import JobPlan
from persia_cli.store.checkpoints.manifest import MANIFEST
from tests.support.jobs import plan
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_run

STEP = 9


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The newest checkpoint of a run."""
    return write_run(tmp_path / "run", make_run(), STEP, [made_up_rows(20, 8, 9, ("a",))], {})


def planned(run_dir: Path, *words: str) -> JobPlan:
    return plan(["conf=synthetic", "recovery.window_s=3600", *words], run_dir)


class Deaths:
    """A driver whose job dies so often before it ends; it keeps the plans that it was given."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.plans: list[JobPlan] = []

    def __call__(self, plan: JobPlan) -> JobResult:
        self.plans.append(plan)
        if len(self.plans) <= self.times:
            raise KilledError("nn-worker-0 was killed by SIGKILL", "nn-worker-0")
        return JobResult(plan.run_dir, [], [])


def test_a_branch_that_has_saved_nothing_goes_back_to_where_it_began(saved: Path, tmp_path: Path) -> None:
    deaths, branch = Deaths(1), planned(tmp_path / "branch")
    branch = replace(branch, job=replace(branch.job, load=str(saved), first_step=STEP), resumes=saved.parents[1])
    launch_with_rollback(branch, deaths, lambda said: None)
    second = deaths.plans[1]
    assert (second.job.load, second.job.first_step) == (str(saved), STEP)
    assert second.resumes == tmp_path / "branch", "its lines of metrics are there"


@pytest.mark.parametrize("most", [0, 1])
def test_a_job_goes_back_so_often_and_no_more(saved: Path, most: int) -> None:
    deaths = Deaths(9)
    with pytest.raises(KilledError) as raised:
        launch_with_rollback(planned(saved.parents[1], f"recovery.max_restarts={most}"), deaths, lambda said: None)
    assert len(deaths.plans) == 1 + most
    notes = getattr(raised.value, "__notes__", [])
    assert notes == (["The job went back 1 time within 3600 s (recovery.max_restarts)."] * most)


def test_a_damaged_checkpoint_does_not_hide_the_death(saved: Path) -> None:
    (saved / MANIFEST).write_bytes(b"{")
    with pytest.raises(KilledError, match="nn-worker-0 was killed") as raised:
        launch_with_rollback(planned(saved.parents[1]), Deaths(9), lambda said: None)
    assert "cannot go back to its newest checkpoint" in raised.value.__notes__[0]
    assert str(saved) in raised.value.__notes__[0]

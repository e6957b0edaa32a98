"""The decision to go back to a checkpoint after a death, without processes: how often, and what keeps it from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult
from persia_cli.engines.rollback import launch_with_rollback
from persia_cli.errors import KilledError, UserError
from persia_cli.observe.journal import EVENTS
from persia_cli.plan.job import JobPlan
from persia_cli.store.checkpoints.manifest import EMBEDDINGS, MANIFEST, finished_steps
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


def test_a_job_does_not_begin_anew_if_all_its_checkpoints_are_damaged(saved: Path) -> None:
    (saved / MANIFEST).write_bytes(b"{")
    with pytest.raises(KilledError, match="nn-worker-0 was killed") as raised:
        launch_with_rollback(planned(saved.parents[1]), Deaths(9), lambda said: None)
    assert "cannot go back to its newest checkpoint: all checkpoints" in raised.value.__notes__[0]
    assert (saved.parent / f"{saved.name}.damaged-1" / MANIFEST).exists()


def test_damage_that_only_loading_finds_costs_one_start_and_two_checkpoints(saved: Path, tmp_path: Path) -> None:
    """Of three checkpoints the newest two have a changed byte; one start fails before all content is compared."""
    run_dir, said = saved.parents[1], list[str]()
    for step in (STEP + 1, STEP + 2):
        made = write_run(tmp_path / str(step), make_run(), step, [made_up_rows(20, 8, 9, ("a",))], {})
        later = made.rename(saved.with_name(made.name))
        [rows] = later.glob(f"{EMBEDDINGS}/*")
        content = bytearray(rows.read_bytes())
        content[-1] ^= 1
        rows.write_bytes(content)
    starts = list[int]()

    def launch(plan: JobPlan) -> JobResult:
        starts.append(plan.job.first_step)
        if not plan.job.load:
            raise KilledError("nn-worker-0 was killed by SIGKILL", "nn-worker-0")
        if plan.job.first_step > STEP:
            (run_dir / EVENTS).write_text('{"event": "phase", "phase": "failed"}\n')
            raise UserError("embedding-server-0: a file has changed since it was saved")
        return JobResult(plan.run_dir, [], [])

    launch_with_rollback(planned(run_dir), launch, said.append)
    assert starts == [0, STEP + 2, STEP]
    assert [text.split("; it is ")[1] for text in said if "damaged-1" in text] == [
        f"step-{step}.damaged-1 from now on, and not used" for step in (STEP + 2, STEP + 1)
    ]
    assert finished_steps(saved.parent) == [STEP]


def test_an_error_of_a_start_whose_checkpoint_is_sound_ends_the_job(saved: Path) -> None:
    def launch(plan: JobPlan) -> JobResult:
        if not plan.job.load:
            raise KilledError("nn-worker-0 was killed by SIGKILL", "nn-worker-0")
        (saved.parents[1] / EVENTS).write_text('{"event": "phase", "phase": "failed"}\n')
        raise UserError("the data set has changed")

    with pytest.raises(UserError, match="the data set has changed"):
        launch_with_rollback(planned(saved.parents[1]), launch, lambda said: None)

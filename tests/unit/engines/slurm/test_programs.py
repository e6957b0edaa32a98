"""Output of Slurm's programs and its environment, and the messages to people that they become."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines.driver_process import driver_record, driving
from persia_cli.engines.slurm.engine import QueuedDriver, queue, queued_again, require_no_other
from persia_cli.engines.slurm.programs import State, lost_among, state_of, submit
from persia_cli.engines.slurm.steps import Allocation, LostMachinesError, allocation_of
from persia_cli.errors import ConfigError, PreemptedError, RoleError, UserError
from persia_cli.plan.job import plan_job
from persia_cli.storage.addresses import VARIABLE
from tests.support.made_up_slurm import put
from tests.support.runs import make_facts, make_run

RUN = compose_run(["conf=synthetic", "cluster=slurm"])
Programs = Callable[..., None]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Put made-up programs of Slurm into the path."""
    return partial(put, tmp_path / "bin", monkeypatch)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The folder of a run."""
    return tmp_path / "shop"


def number_in(run_dir: Path) -> str:
    """Return the number of the job of Slurm that a run directory has."""
    note = driver_record(run_dir)
    assert note is not None
    return note.job


def test_a_job_is_given_as_a_script_and_known_by_its_number(programs: Programs, shop: Path) -> None:
    programs(sbatch='echo "$@" > "$0.words"; cat > "$0.script"; echo "17;cluster"')
    assert queue(RUN, shop) == number_in(shop) == "17"
    sbatch = shop.parent / "bin/sbatch"
    assert sbatch.with_suffix(".words").read_text() == f"--parsable --output={shop}/driver/driver.log\n"
    assert f"drive --scheduler slurm --run-dir {shop} resume=auto <<" in sbatch.with_suffix(".script").read_text()


def test_of_one_run_there_is_one_job(programs: Programs, shop: Path) -> None:
    programs(sbatch="echo 17", squeue="echo 'PENDING|Resources'")
    queue(RUN, shop)
    with pytest.raises(UserError, match=r"job of .*/shop already, as 17"):
        queue(RUN, shop)
    programs(sbatch="echo 18", squeue="echo 'TIMEOUT|None'")
    assert queue(RUN, shop) == "18"


def test_a_script_that_was_given_to_sbatch_by_hand_is_the_job_of_its_run(programs: Programs, shop: Path) -> None:
    programs(sbatch="echo 19", squeue="echo 'RUNNING|None'")
    for _ in range(2):  # also when it is queued again
        require_no_other(shop, "17")
        with driving(shop, scheduler="slurm", job="17"):
            assert number_in(shop) == "17"
    for another in (lambda: queue(RUN, shop), lambda: require_no_other(shop, "18")):
        with pytest.raises(UserError, match=r"job of .*/shop already, as 17"):
            another()
    programs(squeue="echo 'FAILED|None'")
    require_no_other(shop, "18")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Batch job submission failed: Requested node configuration is not available", UserError),
        ("Unable to contact slurm controller (connect failure)", RoleError),
    ],
)
def test_a_job_that_is_refused_leaves_nothing(programs: Programs, said: str, kind: type[Exception], shop: Path) -> None:
    programs(sbatch=f"echo 'sbatch: error: {said}' >&2; exit 1")
    shop.mkdir()
    for run_dir in (shop, shop.with_name("other")):
        with pytest.raises(kind, match=said[:30]):
            queue(RUN, run_dir)
    assert list(shop.iterdir()) == []
    assert not shop.with_name("other").exists()


def test_without_slurm_the_error_names_where_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"sbatch, which cannot be run here.*--render"):
        submit("", tmp_path / "log")


def test_credentials_stay_out_of_slurms_files(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "{}")
    with pytest.raises(ConfigError, match="credentials in URIs have no place"):
        queue(RUN, shop)


@pytest.mark.parametrize(
    ("program", "state", "is_over"),
    [
        ("echo 'PENDING|Priority'", State("PENDING", "Priority"), False),
        ("printf 'RUNNING|None\\nRUNNING|None\\n'", State("RUNNING"), False),
        ("echo 'COMPLETED|None'", State("COMPLETED"), True),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", State("FORGOTTEN"), True),
    ],
)
def test_the_state_of_a_job_is_that_of_its_first_component(
    programs: Programs, program: str, state: State, is_over: bool
) -> None:
    programs(squeue=program)
    assert state_of("17") == state
    assert state.is_over == is_over


def test_machines_that_are_down_or_silent_are_lost(programs: Programs) -> None:
    programs(sinfo="printf 'n1 allocated\\nn2 down*\\nn3 mixed\\nn4 idle*\\nn5 draining\\n'")
    assert lost_among(["n1", "n2", "n3", "n4", "n5"]) == ["n2", "n4"]


@pytest.mark.parametrize(
    ("state", "at_once", "said"),
    [
        ("RUNNING", False, "--batch --signal=TERM 17"),
        ("RUNNING", True, "--batch --signal=INT 17"),
        ("PENDING", False, "17"),
        ("SUSPENDED", True, "17"),
    ],
)
def test_a_job_is_stopped_as_its_state_asks(
    programs: Programs, state: str, at_once: bool, said: str, tmp_path: Path
) -> None:
    programs(squeue=f"echo '{state}|None'", scancel='echo "$@" > "$0.said"')
    QueuedDriver("17").stop(at_once)
    assert (tmp_path / "bin/scancel.said").read_text() == f"{said}\n"


def test_a_suspended_job_cannot_be_saved(programs: Programs) -> None:
    programs(squeue="echo 'SUSPENDED|None'")
    with pytest.raises(UserError, match="17 of Slurm is suspended"):
        QueuedDriver("17").stop(at_once=False)


@pytest.mark.parametrize(
    ("end", "restarts", "is_queued"),
    [
        (PreemptedError("SIGUSR1"), 0, True),
        (PreemptedError("SIGTERM"), 0, False),
        (LostMachinesError("n2"), 1, True),
        (LostMachinesError("n2"), 2, False),
        (RoleError("nn-worker-0 failed"), 0, False),
    ],
)
def test_a_job_is_queued_again_after_its_time_and_without_its_machines(
    programs: Programs, end: Exception, restarts: int, is_queued: bool, shop: Path
) -> None:
    programs()
    run = make_run(cluster={"kind": "slurm"}, recovery={"max_restarts": 2})
    plan = plan_job(run, make_facts(run, 100, 20), "train", shop)
    environment = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": str(restarts)}
    with pytest.raises(type(end)), queued_again(plan, environment, lambda text: None):
        raise end
    asked = shop.parent / "bin/scontrol.said"
    assert (asked.exists() and asked.read_text() == "requeue 17\n") == is_queued


def test_while_slurm_does_not_answer_no_machine_is_known_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, said = Allocation("17", (("n1", "n2"),)), list[str]()
    put(tmp_path / "bin", monkeypatch, sinfo="echo 'n2 down'")
    assert (job.lost(said.append), said) == (frozenset({"n2"}), [])
    put(tmp_path / "bin", monkeypatch, sinfo="echo 'Unable to contact slurm controller' >&2; exit 1")
    assert job.lost(said.append) == frozenset()
    assert said == ["Slurm does not tell which machines are lost: sinfo: Unable to contact slurm controller"]


def test_an_environment_with_half_of_an_allocation_is_refused() -> None:
    with pytest.raises(UserError, match="SLURM_JOB_NODELIST_HET_GROUP_0 is not"):
        allocation_of({"SLURM_JOB_ID": "17", "SLURM_HET_SIZE": "1"})

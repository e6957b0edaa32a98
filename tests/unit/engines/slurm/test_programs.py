"""Output of Slurm's programs, and the messages to people that it becomes."""

from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines.driver_process import driving, note_of
from persia_cli.engines.slurm.programs import State, lost_among, state_of, submit
from persia_cli.engines.slurm.queued import QueuedDriver, queue, queued_again, require_no_other
from persia_cli.engines.slurm.steps import LostMachinesError
from persia_cli.errors import ConfigError, PreemptedError, RoleError, UserError
from persia_cli.plan.job import plan_job
from persia_cli.storage.credentials import VARIABLE
from tests.support.made_up_slurm import put
from tests.support.runs import make_facts, make_run

NOT_THERE = (
    "echo 'sbatch: error: Batch job submission failed: Requested node configuration is not available' >&2; exit 1"
)
NO_CONTROLLER = "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


def test_a_job_is_given_as_a_script_and_known_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "bin", monkeypatch, sbatch='echo "$@" > "$0.words"; cat > "$0.script"; echo "17;cluster"')
    run_dir = tmp_path / "shop"
    assert queue(compose_run(["conf=synthetic", "cluster=slurm"]), run_dir) == "17"
    assert number_in(run_dir) == "17"
    assert (tmp_path / "bin/sbatch.words").read_text() == f"--parsable --output={run_dir}/driver/driver.log\n"
    assert f"drive --run-dir {run_dir} resume=auto <<" in (tmp_path / "bin/sbatch.script").read_text()


def number_in(run_dir: Path) -> str:
    """The number of the job of Slurm that a run directory has."""
    note = note_of(run_dir)
    assert note is not None
    return note.slurm


def test_of_one_run_there_is_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compose_run(["conf=synthetic", "cluster=slurm"])
    put(tmp_path / "bin", monkeypatch, sbatch="echo 17", squeue="echo 'PENDING|Resources'")
    queue(run, tmp_path / "shop")
    with pytest.raises(UserError, match=r"Slurm has the job of .*/shop already, as 17; persia attach"):
        queue(run, tmp_path / "shop")
    put(tmp_path / "bin", monkeypatch, sbatch="echo 18", squeue="echo 'TIMEOUT|None'")
    assert queue(run, tmp_path / "shop") == "18"


def test_a_script_that_was_given_to_sbatch_by_hand_is_the_job_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = compose_run(["conf=synthetic", "cluster=slurm"])
    put(tmp_path / "bin", monkeypatch, sbatch="echo 19", squeue="echo 'RUNNING|None'")
    for _ in range(2):  # also when it is queued again
        require_no_other(tmp_path / "shop", "17")
        with driving(tmp_path / "shop", slurm="17"):
            assert number_in(tmp_path / "shop") == "17"
    for another in (lambda: queue(run, tmp_path / "shop"), lambda: require_no_other(tmp_path / "shop", "18")):
        with pytest.raises(UserError, match=r"Slurm has the job of .*/shop already, as 17"):
            another()
    put(tmp_path / "bin", monkeypatch, squeue="echo 'FAILED|None'")
    require_no_other(tmp_path / "shop", "18")


@pytest.mark.parametrize(
    ("program", "kind", "sentence"),
    [
        (NOT_THERE, UserError, "Slurm refuses the job: sbatch: Batch job submission failed: Requested node"),
        (NO_CONTROLLER, RoleError, "Unable to contact slurm controller"),
    ],
)
def test_a_job_that_is_refused_leaves_nothing(
    program: str, kind: type[Exception], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch, sbatch=program)
    (tmp_path / "shop").mkdir()
    for name in ("shop", "other"):
        with pytest.raises(kind, match=sentence):
            queue(compose_run(["conf=synthetic", "cluster=slurm"]), tmp_path / name)
    assert list((tmp_path / "shop").iterdir()) == []
    assert not (tmp_path / "other").exists()


def test_without_slurm_the_error_names_where_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UserError, match=r"needs Slurm's program sbatch, which cannot be run here: No such file.*--render"
    ):
        submit("", tmp_path / "log")


def test_credentials_stay_out_of_slurms_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "{}")
    with pytest.raises(ConfigError, match="credentials in URIs have no place"):
        queue(compose_run(["conf=synthetic", "cluster=slurm"]), tmp_path / "shop")


@pytest.mark.parametrize(
    ("program", "state", "is_over"),
    [
        ("echo 'PENDING|Priority'", State("PENDING", "Priority"), False),
        ("printf 'RUNNING|None\\nRUNNING|None\\n'", State("RUNNING"), False),
        ("echo 'REQUEUED|None'", State("REQUEUED"), False),
        ("echo 'COMPLETED|None'", State("COMPLETED"), True),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", State("FORGOTTEN"), True),
    ],
)
def test_the_state_of_a_job_is_that_of_its_first_component(
    program: str, state: State, is_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch, squeue=program)
    assert state_of("17") == state
    assert state.is_over == is_over


def test_machines_that_are_down_or_silent_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = "n1 allocated\\nn2 down*\\nn3 mixed\\nn4 idle*\\nn5 draining\\n"
    put(tmp_path / "bin", monkeypatch, sinfo=f"printf '{states}'")
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
    state: str, at_once: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch, squeue=f"echo '{state}|None'", scancel='echo "$@" > "$0.said"')
    QueuedDriver("17").stop(at_once)
    assert (tmp_path / "bin/scancel.said").read_text() == f"{said}\n"


def test_a_suspended_job_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "bin", monkeypatch, squeue="echo 'SUSPENDED|None'")
    with pytest.raises(UserError, match="17 of Slurm is suspended, and cannot save its model"):
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
def test_a_job_is_queued_again_after_its_time_and_without_its_machines_but_not_for_ever(
    end: Exception, restarts: int, is_queued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch)
    run = make_run(cluster={"kind": "slurm"}, recovery={"max_restarts": 2})
    plan = plan_job(run, make_facts(run, 100, 20), "train", tmp_path / "run")
    environment = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": str(restarts)}
    with pytest.raises(type(end)), queued_again(plan, environment, lambda text: None):
        raise end
    asked = tmp_path / "bin/scontrol.said"
    assert (asked.exists() and asked.read_text() == "requeue 17\n") == is_queued


def test_bytes_of_another_encoding_are_shown_as_far_as_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch, squeue="printf 'squeue: Auftrag ung\\374ltig\\n' >&2; exit 1")
    with pytest.raises(RoleError, match=r"^squeue: Auftrag ung\ufffdltig$"):
        state_of("17")

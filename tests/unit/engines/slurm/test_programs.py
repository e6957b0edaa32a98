"""What Slurm's programs say, and what becomes of it for people."""

from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines.job import SUBMITTED, record_end
from persia_cli.engines.slurm.programs import State, lost_among, state_of, submit
from persia_cli.engines.slurm.queued import job_of, queue, require_job, require_well, take_up
from persia_cli.engines.slurm.turns import may_requeue
from persia_cli.errors import ConfigError, PreemptedError, RoleError, UserError
from persia_cli.storage.credentials import VARIABLE
from tests.support.made_up_slurm import put

NOT_THERE = (
    "echo 'sbatch: error: Batch job submission failed: Requested node configuration is not available' >&2; exit 1"
)
NO_CONTROLLER = "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


def test_a_job_is_given_as_a_script_and_known_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "bin", monkeypatch, sbatch='echo "$@" > "$0.words"; cat > "$0.script"; echo "17;cluster"')
    run_dir = tmp_path / "shop"
    assert job_of(run_dir) is None
    assert queue(compose_run(["conf=synthetic", "cluster=slurm"]), run_dir) == "17"
    assert (job_of(run_dir), require_job(run_dir)) == ("17", "17")
    assert (tmp_path / "bin/sbatch.words").read_text() == f"--parsable --output={run_dir}/slurm/script.log\n"
    assert f"on-slurm --run-dir {run_dir} <<" in (tmp_path / "bin/sbatch.script").read_text()


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
        take_up(tmp_path / "shop", "17")
        assert job_of(tmp_path / "shop") == "17"
    for another in (lambda: queue(run, tmp_path / "shop"), lambda: take_up(tmp_path / "shop", "18")):
        with pytest.raises(UserError, match=r"Slurm has the job of .*/shop already, as 17"):
            another()
    put(tmp_path / "bin", monkeypatch, squeue="echo 'FAILED|None'")
    take_up(tmp_path / "shop", "18")
    assert job_of(tmp_path / "shop") == "18"


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


def test_without_slurm_it_is_said_where_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def left(run_dir: Path, code: str, said: str = "") -> Path:
    folder = run_dir / SUBMITTED
    folder.mkdir(parents=True)
    (folder / "end").write_text(code)
    (folder / "script.log").write_text(said)
    return run_dir


def test_how_a_script_ended_is_known_by_what_it_left(tmp_path: Path) -> None:
    over = State("FAILED")
    require_well(left(tmp_path / "well", "0\n"), "17", over)
    with pytest.raises(PreemptedError):
        require_well(left(tmp_path / "saved", "75\n"), "17", over)
    with pytest.raises(UserError, match=r"^coordinator-0 on n1: there is no data$") as mistake:
        require_well(left(tmp_path / "mistake", "2\n", "x\nerror: coordinator-0 on n1: there is no data\n"), "17", over)
    assert not hasattr(mistake.value, "__notes__")
    tail = "The end of the log of nn-worker-0 on n1:\n  boom"
    for name, code in (("failed", "1\n"), ("refused", "2\n")):
        left(tmp_path / name, code, f"again: nn-worker-0 died\nerror: nn-worker-0 died\n{tail}\n")
    record_end(tmp_path / "failed", phase="failed", error="nn-worker-0 died", exit_code=1)
    for name in ("failed", "refused"):
        with pytest.raises(Exception, match="died") as died:
            require_well(tmp_path / name, "17", over)
        assert (str(died.value), died.value.__notes__) == ("nn-worker-0 died", [tail])
    with pytest.raises(RoleError, match=r"the job 17 of Slurm has ended \(NODE_FAIL\)") as killed:
        require_well(left(tmp_path / "killed", "", "last words\n"), "17", State("NODE_FAIL"))
    assert killed.value.__notes__ == ["  last words"]


def test_a_job_that_loses_machines_is_queued_again_so_often_and_a_new_one_begins_to_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch, sbatch="echo 17", squeue="echo 'FAILED|None'")
    run = compose_run(["conf=synthetic", "cluster=slurm", "cluster.max_requeues=2"])
    for _ in range(2):
        queue(run, tmp_path / "shop")
        assert [may_requeue(run, tmp_path / "shop") for _ in range(4)] == [True, True, False, False]


def test_bytes_of_another_encoding_are_shown_as_far_as_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch, squeue="printf 'squeue: Auftrag ung\\374ltig\\n' >&2; exit 1")
    with pytest.raises(RoleError, match=r"^squeue: Auftrag ung\ufffdltig$"):
        state_of("17")

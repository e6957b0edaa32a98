"""A coordinator that is killed gets a new process, which takes the job over: nothing is lost or done twice."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.roles.coordinator.input_log import LOG, InputLog
from persia_cli.store.manifest import CHECKPOINTS, finished_steps, newest_checkpoint
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train
from tests.support.launched import KILLED, Launched, running

WORDS = [
    *("conf=synthetic", "cluster=local", "mode=sync", "train.batch_size=32", "train.log_every_steps=1"),
    *("dataset.generator.train_rows=640", "dataset.generator.eval_rows=96", "train.epochs=100"),
    *("eval.every_steps=40", "checkpoint.every_steps=50", "recovery.max_restarts=30", "recovery.window_s=0.5"),
]
LIMIT_S = 120.0


def coordinator_of(run_dir: Path) -> int:
    """The process that coordinates the run, the last one that said so."""
    events = read_journal(run_dir / EVENTS)
    return next(
        event["pid"]
        for event in reversed(events)
        if event["event"] == "began" or (event["event"] == "recovered" and event["replica"] == "coordinator-0")
    )


def takeovers(run_dir: Path) -> list[dict[str, Any]]:
    return [event for event in read_journal(run_dir / EVENTS) if event["event"] == "recovered"]


def lines(run_dir: Path, ranks: int = 1) -> list[dict[str, Any]]:
    """Every recorded figure but those that depend on the moment.

    An id that is new to two ranks in one step had no row for the one that asked first.
    """
    of_the_moment = ("time", "samples_per_s", *(["look_up_hit_rate"] if ranks > 1 else []))
    return [
        {key: value for key, value in line.items() if key not in of_the_moment}
        for line in read_journal(run_dir / METRICS)
    ]


def story(run_dir: Path) -> list[list[tuple[Any, ...]]]:
    """The events that a run has whatever dies, by kind: its phases, and what became of evaluations and checkpoints."""
    kinds = ("phase", "saved", "reliability", "best", "stopped_early", "ready", "began", "roles")
    events = read_journal(run_dir / EVENTS)
    return [[(event.get("phase"), event.get("step")) for event in events if event["event"] == kind] for kind in kinds]


def kill_when(job: Launched, due: Callable[[], bool], what: str) -> int:
    """Kill the coordinator as soon as a state of the run is reached; return its process."""
    poll_for(lambda: job.process.poll() is not None or due(), LIMIT_S, what)
    assert job.process.poll() is None, job.output
    pid = coordinator_of(job.run_dir)
    os.kill(pid, signal.SIGKILL)
    return pid


def last_step(run_dir: Path) -> int:
    return max((line["step"] for line in read_journal(run_dir / METRICS)), default=0)


def kill_again_and_again(job: Launched, steps: list[int]) -> None:
    for number, step in enumerate(steps, 1):
        kill_when(job, lambda step=step: last_step(job.run_dir) >= step, f"step {step}")
        poll_for(
            lambda number=number: len(takeovers(job.run_dir)) == number or job.process.poll() is not None,
            LIMIT_S,
            "another coordinator to take over",
        )


def assert_undisturbed(job: Launched, straight: Path, deaths: int, ranks: int = 1) -> None:
    assert lines(job.run_dir, ranks) == lines(straight, ranks)
    assert story(job.run_dir) == story(straight)
    recovered = takeovers(job.run_dir)
    assert len(recovered) == deaths
    for event in recovered:
        assert (event["replica"], event["lost"], event["repeated"]) == ("coordinator-0", 0, {})
        assert event["cause"] == KILLED
        assert 0 < event["seconds"] < 60
    assert_same_model(newest_checkpoint(job.run_dir / CHECKPOINTS), newest_checkpoint(straight / CHECKPOINTS))
    assert not (job.run_dir / "coordinator.log").exists()
    assert not (job.run_dir / "coordinator.address").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_a_job_outlives_two_deaths_of_its_coordinator(tmp_path: Path) -> None:
    words = [*WORDS, "train.steps=240"]
    straight = train([*words, "cluster=embedded"], tmp_path / "straight")
    with Launched([*words, "cluster.embedding_servers=2"], tmp_path / "run") as job:
        kill_again_and_again(job, [20, 150])
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
        assert_undisturbed(job, straight.run_dir, 2)
        assert not running(job.pids())


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("transport", "ranks", "window_s"),
    [("tcp", 1, 0.5), ("ipc", 2, 0.5), ("ipc", 1, 600)],
)
def test_a_job_outlives_ten_deaths_of_its_coordinator(
    tmp_path: Path, transport: str, ranks: int, window_s: float
) -> None:
    """Within the window the waits before the next coordinator grow, and the others have to outlast each of them."""
    cluster = {"transport": transport, "nn_workers": ranks}
    words = [*WORDS, "train.steps=1200", *(f"cluster.{key}={value}" for key, value in cluster.items())]
    words.append(f"recovery.window_s={window_s}")
    straight = train(words, tmp_path / "straight")
    with Launched(words, tmp_path / "run") as job:
        kill_again_and_again(job, list(range(50, 1050, 100)))
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
        assert_undisturbed(job, straight.run_dir, 10, ranks)


def has_begun(run_dir: Path, phase: str, number: int = 1) -> bool:
    return [event.get("phase") for event in read_journal(run_dir / EVENTS)].count(phase) >= number


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "joining": lambda run_dir: " joined: " in (run_dir / "roles" / "coordinator-0.log").read_text(),
    "training": lambda run_dir: last_step(run_dir) >= 30,
    "evaluating": lambda run_dir: has_begun(run_dir, "evaluating", 2),
    "saving": lambda run_dir: has_begun(run_dir, "saving"),
    "saved": lambda run_dir: bool(finished_steps(run_dir / CHECKPOINTS)),
    "done": lambda run_dir: has_begun(run_dir, "done"),
}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("moment", MOMENTS)
def test_it_dies_in_every_phase(tmp_path: Path, moment: str) -> None:
    words = [*WORDS, "train.steps=130"]
    straight = train([*words, "cluster=embedded"], tmp_path / "straight")
    with Launched(words, tmp_path / "run") as job:
        log = job.run_dir / "roles" / "coordinator-0.log"
        kill_when(job, lambda: log.exists() and MOMENTS[moment](job.run_dir), moment)
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
        assert_undisturbed(job, straight.run_dir, 1)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("other", ["data-loader-0", "embedding-worker-0", "embedding-server-0"])
def test_it_dies_together_with_another(tmp_path: Path, other: str) -> None:
    words = [*WORDS, "train.steps=200"]
    straight = train([*words, "cluster=embedded"], tmp_path / "straight")
    with Launched(words, tmp_path / "run") as job:
        job.wait_for_training()
        pid = job.pids()[other]
        kill_when(job, lambda: last_step(job.run_dir) >= 30, "step 30")
        os.kill(pid, signal.SIGKILL)
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
        assert lines(job.run_dir) == lines(straight.run_dir)
        assert {event["replica"] for event in takeovers(job.run_dir)} == {"coordinator-0", other}
        assert_same_model(
            newest_checkpoint(job.run_dir / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS)
        )


def damaged(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0x41
    log.write_bytes(content)


def of_another_run(log: Path) -> None:
    log.unlink()
    InputLog(log, b"another run").close(ended=False)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("harm", [damaged, of_another_run, Path.unlink, lambda log: log.write_bytes(b"")])
def test_without_a_log_that_fits_the_job_goes_back_to_its_checkpoint(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    words = [*WORDS, "train.steps=200"]
    straight = train([*words, "cluster=embedded"], tmp_path / "straight")
    with Launched(words, tmp_path / "run") as job:
        poll_for(lambda: finished_steps(job.run_dir / CHECKPOINTS) or job.process.poll() is not None, LIMIT_S, "a save")
        pid = coordinator_of(job.run_dir)
        os.kill(pid, signal.SIGSTOP)
        harm(job.run_dir / LOG)
        os.kill(pid, signal.SIGKILL)
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
        assert f"coordinator-0 was killed, and {job.run_dir / LOG}" in job.output
        assert "the job goes on from the checkpoint of step" in job.output
        assert without_windows(lines(job.run_dir)) == without_windows(lines(straight.run_dir))


def without_windows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines without what begins anew where a job goes back to a checkpoint."""
    return [{key: value for key, value in line.items() if "window_" not in key} for line in found]

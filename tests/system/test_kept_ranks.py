"""An NN worker that is killed goes on with its memory in a new process, as if nothing had happened."""

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from persia_cli.launch.job import JobResult, result_of
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.manifest import CHECKPOINTS
from tests.conftest import poll_for
from tests.support.jobs import losses, train
from tests.support.launched import ENDLESS, KILLED, Launched, running
from tests.support.small import STEPS, WORDS, replicas
from tests.system.test_recovery import assert_same, events_of, kill_at

SMALL = [
    *WORDS,
    "train.log_every_steps=5",
    "cluster=local",
    "cluster.embedding_servers=2",
    "eval.every_steps=100",
]
TWO_RANKS = [*SMALL, "cluster.nn_workers=2", "cluster.embedding_workers=2", "cluster.data_loaders=2"]
HYBRID = ["mode=hybrid", "mode.staleness=4", "recovery.dense_memory=every_step"]
LIMIT_S = 240.0

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """The job in one process, where nothing is kept: to keep a step must not change a bit either."""
    return train([*SMALL, "cluster=embedded"], tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture(scope="module")
def undisturbed_ranks(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train([*TWO_RANKS, "recovery.dense_memory=off"], tmp_path_factory.mktemp("undisturbed") / "run")


def finished(job: Launched, deaths: int) -> JobResult:
    """Wait for the end; every death must have been outlived, with nothing lost and no update repeated."""
    code, _ = job.end(within_s=LIMIT_S)
    assert code == 0, job.output[-3000:]
    assert events_of(job, "warning") == []
    result = result_of(job.run_dir)
    found = [event for event in result.events if event["event"] == "recovered"]
    assert len(found) == deaths
    for event in found:
        assert event["repeated"]["training steps"] <= 2
    assert all(server["updates"]["repeated"] == 0 for server in replicas(result, "embedding-server"))
    return result


def test_a_killed_rank_changes_no_bit(undisturbed: JobResult, tmp_path: Path) -> None:
    with Launched(SMALL, tmp_path / "run") as job:
        kill_at(job, 37, "nn-worker-0")
        result = finished(job, 1)
    assert_same(result, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_is_killed_at_random_changes_no_bit(undisturbed: JobResult, tmp_path: Path, seed: int) -> None:
    step = random.Random(f"rank {seed}").randrange(5, STEPS - 20)
    with Launched(SMALL, tmp_path / "run") as job:
        kill_at(job, step, "nn-worker-0")
        result = finished(job, 1)
    assert_same(result, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_nor_does_one_of_two(undisturbed_ranks: JobResult, tmp_path: Path, seed: int) -> None:
    rng = random.Random(f"two ranks {seed}")
    with Launched(TWO_RANKS, tmp_path / "run") as job:
        kill_at(job, rng.randrange(5, STEPS - 20), f"nn-worker-{rng.randrange(2)}")
        result = finished(job, 1)
    assert_same(result, undisturbed_ranks, ranks=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("words", [SMALL, TWO_RANKS], ids=["one rank", "two ranks"])
def test_in_hybrid_mode_every_server_applies_every_update_once(tmp_path: Path, words: list[str], seed: int) -> None:
    ranks = 2 if words is TWO_RANKS else 1
    rng = random.Random(f"hybrid {ranks} {seed}")
    with Launched([*words, *HYBRID], tmp_path / "run") as job:
        kill_at(job, rng.randrange(5, STEPS - 20), f"nn-worker-{rng.randrange(ranks)}")
        result = finished(job, 1)
    assert [server["updates"]["applied"] for server in replicas(result, "embedding-server")] == [ranks * STEPS] * 2
    assert len(losses(result)) == STEPS // 5


def _rank(job: Launched, rank: int = 0) -> psutil.Process | None:
    """The process that does the work of a rank now, ready or not."""
    for child in psutil.Process(job.process.pid).children():
        try:
            words = child.cmdline()
        except psutil.Error:
            continue
        if "nn-worker" in words and words[words.index("--index") + 1] == str(rank):
            return child
    return None


def _maps(rank: psutil.Process, library: str) -> bool:
    with suppress(OSError):
        return library in Path(f"/proc/{rank.pid}/maps").read_text()
    return False


def _log_of(job: Launched, name: str) -> str:
    path = job.run_dir / "roles" / f"{name}.log"
    return path.read_text() if path.exists() else ""


STARTING: dict[str, Callable[[Launched, psutil.Process], object]] = {
    "there is a process": lambda job, rank: True,
    "it has imported torch": lambda job, rank: _maps(rank, "libtorch_cpu"),
    "it has joined": lambda job, rank: "nn-worker-0 joined" in _log_of(job, "coordinator-0"),
    "all are ready": lambda job, rank: events_of(job, "ready"),
}
"""Moments of the start of a rank."""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("moment", STARTING)
def test_one_that_is_killed_while_it_starts_begins_anew(
    undisturbed: JobResult, undisturbed_ranks: JobResult, tmp_path: Path, ranks: int, moment: str
) -> None:
    with Launched(SMALL if ranks == 1 else TWO_RANKS, tmp_path / "run") as job:
        poll_for(lambda: (rank := _rank(job)) and STARTING[moment](job, rank), LIMIT_S, moment)
        rank = _rank(job)
        assert rank is not None
        rank.kill()
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
        result = result_of(job.run_dir)
    assert_same(result, undisturbed if ranks == 1 else undisturbed_ranks, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_under_way_is_begun_anew(tmp_path: Path, ranks: int) -> None:
    words = [*(SMALL if ranks == 1 else TWO_RANKS), "dataset.generator.eval_rows=16_000", "eval.every_steps=150"]
    undisturbed = train([*words, "recovery.dense_memory=off"], tmp_path / "undisturbed")
    with Launched(words, tmp_path / "run") as job:
        evaluating = lambda: [e for e in events_of(job, "phase") if e["phase"] == "evaluating"]  # noqa: E731
        poll_for(lambda: evaluating() or job.process.poll() is not None, LIMIT_S, "the evaluation")
        os.kill(job.pids()["nn-worker-0"], signal.SIGKILL)
        result = finished(job, 1)
        assert len(evaluating()) in (2, 3)  # two are wanted
    assert_same(result, undisturbed, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_save_under_way_is_finished(tmp_path: Path, seed: int) -> None:
    words = [*SMALL, "checkpoint.every_steps=20", "checkpoint.keep=2"]
    undisturbed = train([*words, "recovery.dense_memory=off"], tmp_path / "undisturbed")
    with Launched(words, tmp_path / "run") as job:
        number = 2 + seed
        saving = lambda: [e for e in events_of(job, "phase") if e["phase"] == "saving"]  # noqa: E731
        poll_for(lambda: len(saving()) >= number or job.process.poll() is not None, LIMIT_S, "a save")
        saved, drafts = len(events_of(job, "saved")), job.run_dir / CHECKPOINTS
        # Another moment each time: so many files are there, or the save was faster than this test.
        poll_for(
            lambda: len([*drafts.glob("*.partial/*/*")]) >= seed or len(events_of(job, "saved")) > saved,
            LIMIT_S,
            "some files",
        )
        os.kill(job.pids()["nn-worker-0"], signal.SIGKILL)
        result = finished(job, 1)
        assert events_of(job, "save_failed") == []
        assert len(events_of(job, "saved")) == len([e for e in undisturbed.events if e["event"] == "saved"])
    assert losses(result) == losses(undisturbed)


@pytest.mark.slow
def test_after_a_fault_of_its_own_the_memory_is_not_trusted(tmp_path: Path) -> None:
    with Launched(ENDLESS, tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids["nn-worker-0"], signal.SIGSEGV)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 1
        assert "error: nn-worker-0 was killed by SIGSEGV" in job.output
        assert running(pids) == []


@pytest.mark.slow
def test_one_that_dies_again_and_again_ends_the_job(tmp_path: Path) -> None:
    with Launched([*ENDLESS, "recovery.max_restarts=1"], tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids["nn-worker-0"], signal.SIGKILL)
        poll_for(lambda: events_of(job, "recovered"), LIMIT_S, "a new process")
        reached = read_journal(job.run_dir / METRICS)[-1]["step"]
        poll_for(lambda: read_journal(job.run_dir / METRICS)[-1]["step"] > reached + 20, LIMIT_S, "steps after that")
        os.kill(events_of(job, "recovered")[0]["pid"], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 1
        assert f"nn-worker-0 {KILLED}, and its restarts are used up" in job.output


@pytest.mark.slow
def test_memory_is_not_kept_where_it_is_not_wanted(tmp_path: Path) -> None:
    words = [*ENDLESS, "recovery.dense_memory=off"]
    with Launched(words, tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids["nn-worker-0"], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 1
        assert events_of(job, "died") == []

"""An embedding server that is killed gets a new process, which goes on with its memory as if nothing had happened."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.store.checkpoints.chain import read_chain
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, finished_steps
from tests.conftest import poll_for
from tests.support.jobs import losses, train
from tests.support.launched import ENDLESS, KILLED, Launched, running
from tests.support.small import STEPS, WORDS, replicas
from tests.system.test_recovery import assert_same, events_of, kill_at, rows_of, train_and_kill

LONG = 2 * STEPS
SMALL = [
    *WORDS,
    "train.log_every_steps=5",
    "cluster=local",
    "cluster.embedding_servers=2",
    f"dataset.generator.train_rows={32 * LONG}",
]
TWO_RANKS = [*SMALL, "cluster.nn_workers=2", "cluster.embedding_workers=2"]
HYBRID = ["mode=hybrid", "mode.staleness=4"]
ONE, BOTH = ("embedding-server-1",), ("embedding-server-0", "embedding-server-1")
WITH_WORKER = ("embedding-server-0", "embedding-worker-0")
LIMIT_S = 180.0

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train(SMALL, tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture(scope="module")
def undisturbed_ranks(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train(TWO_RANKS, tmp_path_factory.mktemp("undisturbed") / "run")


def step_of(names: tuple[str, ...], seed: int) -> int:
    return random.Random(f"{names} {seed}").randrange(5, LONG // 2)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_a_sync_run_has_the_same_bits(undisturbed: JobResult, tmp_path: Path, seed: int) -> None:
    assert_same(train_and_kill(SMALL, tmp_path / "run", step_of(ONE, seed), *ONE), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("names", [BOTH, WITH_WORKER], ids="+".join)
def test_so_it_has_if_two_die_at_once(
    undisturbed: JobResult, tmp_path: Path, names: tuple[str, ...], seed: int
) -> None:
    assert_same(train_and_kill(SMALL, tmp_path / "run", step_of(names, seed), *names), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("names", [ONE, BOTH], ids="+".join)
def test_so_has_one_of_two_ranks(
    undisturbed_ranks: JobResult, tmp_path: Path, names: tuple[str, ...], seed: int
) -> None:
    result = train_and_kill(TWO_RANKS, tmp_path / "run", step_of(names, seed), *names)
    assert_same(result, undisturbed_ranks, ranks=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("names", [ONE, BOTH, WITH_WORKER], ids="+".join)
def test_in_hybrid_mode_every_server_applies_every_update_once(
    tmp_path: Path, names: tuple[str, ...], seed: int
) -> None:
    result = train_and_kill([*TWO_RANKS, *HYBRID], tmp_path / "run", step_of(names, seed), *names)
    servers = replicas(result, "embedding-server")
    # Counted in the memory that the processes hand on; the first entry of each replaced server has no such count.
    applied = [entry["updates"]["applied"] for entry in servers if "applied" in entry["updates"]]
    assert applied == [2 * LONG, 2 * LONG]
    assert len(losses(result)) == LONG // 5


def memory_files() -> list[Path]:
    """The memory files of embedding servers that any process of this machine has."""
    found = []
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found += [file] if "memfd:embedding-server" in str(file.readlink()) else []
        except OSError:
            continue  # the process has ended, or is another user's
    return found


def own_memory_files(job: Launched) -> list[Path]:
    """Those that the launcher of a job holds."""
    return [file for file in memory_files() if file.parts[2] == str(job.process.pid)]


BIG = [
    *SMALL,
    "train.batch_size=4096",
    f"dataset.generator.train_rows={4096 * 120}",
    "dataset.generator.cardinalities=[400_000, 400_000]",
    "model.dim=32",
    "embedding.capacity=600_000",
    "checkpoint.every_steps=40",
]


@pytest.mark.slow
def test_a_death_during_a_save_costs_that_save_alone(tmp_path: Path) -> None:
    undisturbed = train(BIG, tmp_path / "undisturbed")
    with Launched(BIG, tmp_path / "run") as job:
        folder = job.run_dir / CHECKPOINTS

        def writes() -> bool:
            return any(folder.glob("*/embeddings/*.arrow")) and not finished_steps(folder)

        poll_for(lambda: job.process.poll() is not None or writes(), LIMIT_S, "files of a checkpoint")
        os.kill(job.pids()["embedding-server-1"], signal.SIGKILL)
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output[-3000:]
        [failed] = events_of(job, "save_failed")
        assert failed["step"] == 40
        assert "embedding-server-1 " in failed["text"]
        assert "while it wrote its rows" in failed["text"]
        assert finished_steps(folder) == [80, 120]
        assert len(events_of(job, "recovered")) == 1
        assert losses(result_of(job.run_dir)) == losses(undisturbed)
        assert rows_of(job.run_dir) == rows_of(undisturbed.run_dir)


@pytest.mark.slow
def test_a_death_during_an_evaluation_changes_nothing(tmp_path: Path) -> None:
    words = [*SMALL, "dataset.generator.eval_rows=16_000", "dataset.generator.train_rows=3_200"]
    undisturbed = train(words, tmp_path / "undisturbed")
    with Launched(words, tmp_path / "run") as job:
        poll_for(lambda: any(event["phase"] == "evaluating" for event in events_of(job, "phase")), LIMIT_S, "it")
        os.kill(job.pids()["embedding-server-0"], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
        assert len(events_of(job, "recovered")) == 1
        assert_same(result_of(job.run_dir), undisturbed)


@pytest.mark.slow
def test_a_resumed_run_takes_over_what_it_has_trained_and_not_the_checkpoint(
    undisturbed: JobResult, tmp_path: Path
) -> None:
    train([*SMALL, f"train.steps={LONG // 3}"], tmp_path / "run")
    words = [f"resume={tmp_path / 'run'}", f"train.steps={LONG}"]
    with Launched([*SMALL, *words], tmp_path / "more") as job:
        kill_at(job, LONG // 2, *BOTH)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
        assert len(events_of(job, "recovered")) == 2
        log = (job.run_dir / "roles" / "embedding-server-0.log").read_text()
        assert (log.count("rows from"), log.count("took over")) == (1, 1)
        assert rows_of(job.run_dir) == rows_of(undisturbed.run_dir)


@pytest.mark.slow
def test_checkpoints_of_changes_go_on(tmp_path: Path) -> None:
    """After a kill the next checkpoint has only changes, and chain and rows are those of an undisturbed run."""
    words = [*SMALL, "checkpoint.every_steps=30", "checkpoint.full_every=50"]
    undisturbed = train(words, tmp_path / "undisturbed")
    with Launched(words, tmp_path / "run") as job:
        kill_at(job, 100, *BOTH)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
    chains = [folder / CHECKPOINTS for folder in (job.run_dir, undisturbed.run_dir)]
    whole = [event["step"] for event in events_of(job, "saved") if event["parent"] is None]
    given_up = [event["step"] for event in events_of(job, "save_failed")]
    assert set(whole) <= {30, *(step + 30 for step in given_up)}, "an aborted save costs the next one, no other"
    for step in finished_steps(chains[0]):
        own, other = (
            [
                row
                for file in read_chain(checkpoint_folder(checkpoints, step)).row_files(with_dense=True)
                for batch in file.batches()
                for row in batch.to_pylist()
            ]
            for checkpoints in chains
        )
        assert own == other


def rolled_back(job: Launched, kill: Any) -> dict[str, Any]:
    """Run a job, have `kill` disturb it once it has a checkpoint; return the event of its going back."""
    poll_for(
        lambda: job.process.poll() is not None or finished_steps(job.run_dir / CHECKPOINTS), LIMIT_S, "a checkpoint"
    )
    kill(job.pids()["embedding-server-1"])
    poll_for(lambda: job.process.poll() is not None or events_of(job, "recovered"), LIMIT_S, "the job's going back")
    [recovered] = events_of(job, "recovered")
    assert recovered["replica"] == "embedding-server-1"
    assert recovered["checkpoint"] > 0
    return recovered


ROLLS_BACK = [*ENDLESS, "cluster.embedding_servers=2", "checkpoint.every_steps=50", "checkpoint.keep=2"]


@pytest.mark.slow
def test_after_an_internal_fault_memory_is_not_trusted(tmp_path: Path) -> None:
    with Launched(ROLLS_BACK, tmp_path / "run") as job:
        recovered = rolled_back(job, lambda pid: os.kill(pid, signal.SIGSEGV))
        assert recovered["cause"] == "embedding-server-1 was killed by SIGSEGV"


@pytest.mark.slow
def test_memory_that_is_damaged_is_refused_and_the_job_goes_back(tmp_path: Path) -> None:
    with Launched(ROLLS_BACK, tmp_path / "run") as job:

        def damage(pid: int) -> None:
            job.process.send_signal(signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            [file] = [file for file in own_memory_files(job) if "server-1" in str(file.readlink())]
            with file.open("r+b") as memory:
                memory.write(b"no memory")
            job.process.send_signal(signal.SIGCONT)

        recovered = rolled_back(job, damage)
        assert recovered["cause"].startswith("embedding-server-1 was killed, and there is no memory of an earlier")


@pytest.mark.slow
def test_a_server_that_dies_again_and_again_ends_the_job(tmp_path: Path) -> None:
    with Launched([*ROLLS_BACK, "recovery.max_restarts=1"], tmp_path / "run") as job:
        pid = job.wait_for_training()["embedding-server-0"]
        os.kill(pid, signal.SIGKILL)
        poll_for(lambda: events_of(job, "recovered"), LIMIT_S, "a new process")
        os.kill(events_of(job, "recovered")[0]["pid"], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 1
        assert f"embedding-server-0 {KILLED}, and its restarts are used up" in job.output


@pytest.mark.slow
@pytest.mark.parametrize("when", ["training", "restarting"])
def test_a_launcher_that_is_killed_leaves_no_memory(tmp_path: Path, when: str) -> None:
    with Launched(ROLLS_BACK, tmp_path / "run") as job:
        pids = job.wait_for_training()
        assert len(own_memory_files(job)) == 2
        if when == "restarting":
            os.kill(pids["embedding-server-0"], signal.SIGKILL)
            poll_for(lambda: "embedding-server-0" not in running(pids), LIMIT_S, "its end")
        children = psutil.Process(job.process.pid).children(recursive=True)
        job.process.kill()
        poll_for(lambda: not any(child.is_running() for child in children), LIMIT_S, "the end of all")
        mine = {str(pid) for pid in [job.process.pid, *pids.values(), *(child.pid for child in children)]}
        assert [file for file in memory_files() if file.parts[2] in mine] == []

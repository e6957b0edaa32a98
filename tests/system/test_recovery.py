"""A data loader or an embedding worker that dies gets a new process, and nothing but the time it takes is different."""

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.ipc
import pytest

from persia_cli.drill.job import replicas_of
from persia_cli.engines.job import JobResult, result_of
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, EMBEDDINGS, finished_steps
from tests.conftest import poll_for
from tests.support.jobs import losses, train
from tests.support.launched import ENDLESS, KILLED, Launched, running
from tests.support.small import STEPS, WORDS, figures, replicas

SMALL = [*WORDS, "train.log_every_steps=5"]
LONG = 2 * STEPS
CLUSTER = [
    "cluster=local",
    f"dataset.generator.train_rows={32 * LONG}",
    "cluster.embedding_servers=2",
    "cluster.embedding_workers=2",
    "cluster.data_loaders=2",
]
TWO_RANKS = [*CLUSTER, "cluster.nn_workers=2"]
HYBRID = ["mode=hybrid", "mode.staleness=4"]
LIMIT_S = 180.0
LOADER, WORKER = "data-loader-1", "embedding-worker-0"

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def events_of(job: Launched, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_journal(job.run_dir / EVENTS) if event["event"] == kind]


def kill_at(job: Launched, step: int, *names: str) -> None:
    """Kill replicas once the step is in the record."""

    def reached() -> bool:
        lines = read_journal(job.run_dir / METRICS)
        return bool(lines and lines[-1]["step"] >= step) or job.process.poll() is not None

    poll_for(reached, LIMIT_S, f"step {step}")
    pids = job.pids()
    for name in names:
        os.kill(pids[name], signal.SIGKILL)


def train_and_kill(words: list[str], run_dir: Path, step: int, *names: str) -> JobResult:
    """Run a job, and kill replicas at a step; return its result once it has ended well."""
    with Launched(words, run_dir) as job:
        kill_at(job, step, *names)
        result = recovered(job, names, LIMIT_S)
    found = [event for event in result.events if event["event"] == "recovered"]
    assert all(event["cause"].startswith("was killed by SIGKILL") for event in found)
    return result


def recovered(job: Launched, names: Sequence[str], within_s: float) -> JobResult:
    """Wait for the end of a job; return its result, which has these replicas as replaced and nothing lost."""
    code, _ = job.end(within_s=within_s)
    assert code == 0, job.output[-3000:]
    assert events_of(job, "warning") == []
    result = result_of(job.run_dir)
    found = [event for event in result.events if event["event"] == "recovered"]
    assert sorted(event["replica"] for event in found) == sorted(names)
    return result


def rows_of(run_dir: Path) -> list[Any]:
    """All rows of the last checkpoint, sorted: on which server and at which place they lie does not matter."""
    rows: list[Any] = []
    folder = run_dir / CHECKPOINTS / f"step-{finished_steps(run_dir / CHECKPOINTS)[-1]}"
    for path in sorted((folder / EMBEDDINGS).glob("*.arrow")):
        rows += pyarrow.ipc.open_file(path).read_all().to_pylist()
    return sorted(rows, key=lambda row: (row["table"], row["id"]))


def assert_same(result: JobResult, undisturbed: JobResult, ranks: int = 1) -> None:
    assert len(losses(result)) > 10
    assert losses(result) == losses(undisturbed)
    assert figures(result, ranks) == figures(undisturbed, ranks)
    assert rows_of(result.run_dir) == rows_of(undisturbed.run_dir)
    dense = [sorted(each.run_dir.glob("checkpoints/*/dense/*.safetensors")) for each in (result, undisturbed)]
    assert [file.read_bytes() for file in dense[0]] == [file.read_bytes() for file in dense[1]] != []


@pytest.mark.slow
def test_both_die_and_the_result_has_the_same_bits(tmp_path: Path) -> None:
    undisturbed = train([*SMALL, "cluster=embedded"], tmp_path / "undisturbed")
    result = train_and_kill([*SMALL, "cluster=local"], tmp_path / "run", 20, "data-loader-0", "embedding-worker-0")
    assert_same(result, undisturbed)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train([*SMALL, *CLUSTER], tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture(scope="module")
def undisturbed_ranks(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train([*SMALL, *TWO_RANKS], tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("names", [(LOADER,), (WORKER,), (LOADER, WORKER)], ids="+".join)
def test_a_sync_run_has_the_same_bits(
    undisturbed: JobResult, tmp_path: Path, names: tuple[str, ...], seed: int
) -> None:
    step = random.Random(f"{names} {seed}").randrange(5, LONG // 2)
    assert_same(train_and_kill([*SMALL, *CLUSTER], tmp_path / "run", step, *names), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("names", [(LOADER,), (WORKER,), (LOADER, WORKER)], ids="+".join)
def test_so_has_one_of_two_ranks(
    undisturbed_ranks: JobResult, tmp_path: Path, names: tuple[str, ...], seed: int
) -> None:
    step = random.Random(f"{names} {seed}").randrange(5, LONG // 2)
    assert_same(train_and_kill([*SMALL, *TWO_RANKS], tmp_path / "run", step, *names), undisturbed_ranks, ranks=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("names", [(LOADER,), (WORKER,), (LOADER, WORKER)], ids="+".join)
def test_in_hybrid_mode_every_server_applies_every_update_once(
    tmp_path: Path, names: tuple[str, ...], seed: int
) -> None:
    step = random.Random(f"{names} {seed}").randrange(5, LONG // 2)
    result = train_and_kill([*SMALL, *TWO_RANKS, *HYBRID], tmp_path / "run", step, *names)
    servers = replicas(result, "embedding-server")
    assert [server["updates"]["applied"] for server in servers] == [2 * LONG, 2 * LONG]
    assert len(losses(result)) == LONG // 5


@pytest.mark.slow
def test_over_tcp_a_new_process_is_found_at_its_new_port(tmp_path: Path) -> None:
    words = [*SMALL, *CLUSTER, "cluster.transport=tcp"]
    assert_same(train_and_kill(words, tmp_path / "run", 20, WORKER, LOADER), train(words, tmp_path / "undisturbed"))


@pytest.mark.slow
def test_a_death_during_an_evaluation_changes_nothing(tmp_path: Path) -> None:
    words = [*SMALL, "dataset.generator.eval_rows=16_000", "dataset.generator.train_rows=1_920"]
    undisturbed = train([*words, "cluster=embedded"], tmp_path / "undisturbed")
    with Launched([*words, "cluster=local"], tmp_path / "run") as job:
        evaluating = [{"event": "phase", "phase": "evaluating"}]
        poll_for(
            lambda: any(evaluating[0].items() <= event.items() for event in events_of(job, "phase")),
            LIMIT_S,
            "the evaluation",
        )
        for name in ("data-loader-0", "embedding-worker-0"):
            os.kill(job.pids()[name], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
        assert len(events_of(job, "recovered")) == 2
        assert_same(result_of(job.run_dir), undisturbed)


@pytest.mark.slow
def test_one_that_is_only_stopped_is_not_dead(tmp_path: Path) -> None:
    with Launched(ENDLESS, tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids["data-loader-0"], signal.SIGSTOP)
        stopped = psutil.Process(pids["data-loader-0"])
        poll_for(lambda: stopped.status() == psutil.STATUS_STOPPED, LIMIT_S, "a loader that stands still")
        seen: list[int] = []

        def stands_still() -> bool:
            seen.append(read_journal(job.run_dir / METRICS)[-1]["step"])
            return seen[-200:].count(seen[-1]) == 200  # two seconds, or more

        poll_for(stands_still, LIMIT_S, "training to wait for it")
        before = seen[-1]
        os.kill(pids["data-loader-0"], signal.SIGCONT)
        poll_for(lambda: read_journal(job.run_dir / METRICS)[-1]["step"] > before + 20, LIMIT_S, "steps after that")
        assert events_of(job, "died") == []
        assert running(pids) == list(pids)


@pytest.mark.slow
def test_a_replica_that_dies_again_and_again_ends_the_job(tmp_path: Path) -> None:
    with Launched([*ENDLESS, "recovery.max_restarts=1"], tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids["data-loader-0"], signal.SIGKILL)
        poll_for(lambda: events_of(job, "recovered"), LIMIT_S, "a new process")
        pids["data-loader-0"] = events_of(job, "recovered")[0]["pid"]
        os.kill(pids["data-loader-0"], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)

        assert code == 1
        said = f"error: data-loader-0 {KILLED}, and its restarts are used up"
        assert f"{said} (recovery.max_restarts: 1 within 600 s)\nThe job was stopped. The end of" in job.output
        assert "instruction 1: TrainSteps" in job.output.partition(said)[2]
        assert running(pids) == []


@pytest.mark.slow
def test_a_launcher_that_is_killed_during_a_restart_leaves_nothing(tmp_path: Path) -> None:
    with Launched(ENDLESS, tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids["embedding-worker-0"], signal.SIGKILL)
        launcher = psutil.Process(job.process.pid)
        poll_for(lambda: len(replicas_of(launcher.pid)) == len(pids) and "embedding-worker-0" not in running(pids)
                 and events_of(job, "died"), LIMIT_S, "the new process")  # fmt: skip
        children = launcher.children(recursive=True)
        job.process.kill()
        poll_for(lambda: not any(child.is_running() for child in children), LIMIT_S, "the end of all")

"""Processes that die: a new process, or the way back to a checkpoint, and the result has the same bits."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.ipc
import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    EMBEDDINGS,
    finished_steps,
)
from tests.conftest import poll_for
from tests.support.jobs import losses, train
from tests.support.launched import ENDLESS, KILLED, Launched, running
from tests.support.small import STEPS, WORDS, figures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LONG = 2 * STEPS
CLUSTER = [
    "cluster=local",
    f"dataset.generator.train_rows={32 * LONG}",
    "cluster.embedding_servers=2",
    "cluster.embedding_workers=2",
    "cluster.data_loaders=2",
]
LIMIT_S = 180.0


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


@pytest.mark.parametrize(
    "name", ["data-loader-0", "embedding-worker-0", "embedding-server-0", "nn-worker-0", "coordinator-0"]
)
def test_one_that_is_silent_is_killed_and_its_rule_applies(name: str, tmp_path: Path) -> None:
    words = [*ENDLESS, "cluster.silence_timeout_s=6", "cluster.stop_timeout_s=1", "checkpoint.every_steps=50"]
    with Launched(words, tmp_path / "run") as job:
        pids = job.wait_for_training()
        poll_for(lambda: finished_steps(job.run_dir / CHECKPOINTS), LIMIT_S, "a checkpoint")
        os.kill(pids[name], signal.SIGSTOP)
        poll_for(lambda: events_of(job, "recovered") or job.process.poll() is not None, LIMIT_S, "its recovery")
        assert job.process.poll() is None, job.output
        [recovery] = events_of(job, "recovered")
        assert recovery["replica"] == name
        assert "silent" in recovery["cause"]
        assert ("checkpoint" in recovery) == (name in ("nn-worker-0", "coordinator-0"))
        assert name not in running(pids)


def test_deaths_beyond_the_limit_roll_the_job_back_and_then_end_it(tmp_path: Path) -> None:
    with Launched([*ENDLESS, "recovery.max_restarts=1"], tmp_path / "run") as job:
        os.kill(job.wait_for_training()["data-loader-0"], signal.SIGKILL)
        poll_for(lambda: events_of(job, "recovered"), LIMIT_S, "a new process")
        os.kill(events_of(job, "recovered")[0]["pid"], signal.SIGKILL)
        poll_for(lambda: any("checkpoint" in event for event in events_of(job, "recovered")), LIMIT_S, "a rollback")
        assert f"data-loader-0 {KILLED}, and its restarts are used up (recovery.max_restarts: 1" in job.output
        os.kill(job.pids()["nn-worker-0"], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)

        assert code == 1
        assert f"error: nn-worker-0 {KILLED}" in job.output
        assert "The job went back 1 time within 600 s (recovery.max_restarts)" in job.output
        assert running(job.pids()) == []


TWO_SERVERS = [
    *WORDS,
    "train.log_every_steps=5",
    "cluster=local",
    "cluster.embedding_servers=2",
    f"dataset.generator.train_rows={32 * LONG}",
]
BOTH = ("embedding-server-0", "embedding-server-1")


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
    """Those that the driver of a job holds."""
    return [file for file in memory_files() if file.parts[2] == str(job.process.pid)]


BIG = [
    *TWO_SERVERS,
    "train.batch_size=4096",
    f"dataset.generator.train_rows={4096 * 120}",
    "dataset.generator.cardinalities=[400_000, 400_000]",
    "model.dim=32",
    "embedding.capacity=600_000",
    "checkpoint.every_steps=40",
]


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
        again, *others = (event["step"] for event in events_of(job, "saved"))
        assert (40 <= again < 80, others) == (True, [80, 120]), "it is tried again before the interval is over"
        assert len(events_of(job, "recovered")) == 1
        assert rows_of(job.run_dir) == rows_of(undisturbed.run_dir)


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


def test_after_an_internal_fault_memory_is_not_trusted(tmp_path: Path) -> None:
    with Launched(ROLLS_BACK, tmp_path / "run") as job:
        recovered = rolled_back(job, lambda pid: os.kill(pid, signal.SIGSEGV))
        assert recovered["cause"] == "embedding-server-1 was killed by SIGSEGV"


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


@pytest.mark.parametrize("when", ["training", "restarting"])
def test_a_driver_that_is_killed_leaves_no_memory(tmp_path: Path, when: str) -> None:
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


SAVED_STEPS, EVERY = 300, 50
SAVED = [
    *("conf=synthetic", "cluster=local", "mode=sync", "train.batch_size=32", "train.log_every_steps=5"),
    *(
        "dataset.generator.train_rows=640",
        "dataset.generator.eval_rows=96",
        f"train.steps={SAVED_STEPS}",
        "train.epochs=100",
    ),
    *("eval.every_steps=120", f"checkpoint.every_steps={EVERY}", "checkpoint.keep=2"),
]
BACK_S = 120.0


def kill_after(job: Launched, name: str, step: int) -> None:
    """Kill a replica, whose memory is lost, once it trains and there is a checkpoint of `step` or later."""

    def due() -> bool:
        there = [saved for saved in finished_steps(job.run_dir / CHECKPOINTS) if saved >= step]
        return bool(there) and name in running(job.pids())

    poll_for(lambda: job.process.poll() is not None or due(), BACK_S, f"the checkpoint of step {step}")
    assert job.process.poll() is None, job.output
    os.kill(job.pids()[name], signal.SIGKILL if name.startswith("nn") else signal.SIGSEGV)


def test_deaths_without_end_end_the_job(tmp_path: Path) -> None:
    with Launched([*SAVED, "recovery.max_restarts=2"], tmp_path / "run") as job:
        for back in (1, 2, 3):
            kill_after(job, "embedding-server-0", EVERY)
            poll_for(
                lambda back=back: job.process.poll() is not None or job.output.count("the job goes on") == back,
                BACK_S,
                "the job to go back, or to end",
            )
        code, _ = job.end(BACK_S)
        assert code == 1
        assert job.output.count("the job goes on") == 2
        assert "error: embedding-server-0 was killed by SIGSEGV" in job.output
        assert "went back 2 times within 600 s (recovery.max_restarts)" in job.output


SILENCE_S = 6
SILENT = [*ENDLESS, f"cluster.silence_timeout_s={SILENCE_S}", "cluster.stop_timeout_s=1", "cluster.embedding_workers=2"]
SAVE_EVERY = 400
"""Steps between two checkpoints."""
END_S = SILENCE_S + 20.0
"""Silence, a second for torch to notice, and the end of the processes on a machine that is busy."""
STEPS_S = 60.0


def errors(job: Launched) -> list[str]:
    return [line for line in job.output.splitlines() if line.startswith("error:")]


def _between_checkpoints(run_dir: Path) -> bool:
    """Return True if the job is well after a checkpoint and long before the next, while none is being written."""
    saved = finished_steps(run_dir / CHECKPOINTS)
    step = int(read_journal(run_dir / METRICS)[-1]["step"])
    return bool(saved) and 50 < step - saved[-1] < SAVE_EVERY / 2


@pytest.mark.parametrize("mode", ["hybrid", "sync"])
def test_no_checkpoint_comes_after_updates_that_not_all_servers_have(mode: str, tmp_path: Path) -> None:
    """An embedding worker is killed while one of two servers stands still, and so lacks what the other has."""
    words = [*SILENT, f"mode={mode}", "cluster.embedding_servers=2", f"checkpoint.every_steps={SAVE_EVERY}"]
    words += ["recovery.max_restarts=0"]
    run_dir = tmp_path / "run"
    with Launched(words, run_dir) as job:
        pids = job.wait_for_training()
        poll_for(lambda: _between_checkpoints(run_dir), STEPS_S, "steps after a checkpoint")
        os.kill(pids["embedding-server-1"], signal.SIGSTOP)
        stopped = psutil.Process(pids["embedding-server-1"])
        poll_for(lambda: stopped.status() == psutil.STATUS_STOPPED, END_S, "a server that stands still")
        saved = finished_steps(run_dir / CHECKPOINTS)
        os.kill(pids["embedding-worker-0"], signal.SIGKILL)
        poll_for(lambda: "embedding-worker-0" not in running(pids), END_S, "the end of the worker")
        os.kill(pids["embedding-server-1"], signal.SIGCONT)
        code, _ = job.end(within_s=END_S)

        assert code == 1
        assert saved
        assert errors(job)[0].startswith("error: embedding-worker-0 was killed by SIGKILL")
        assert finished_steps(run_dir / CHECKPOINTS) == saved
        assert running(pids) == []

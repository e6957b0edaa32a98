"""SIGTERM while a job stands still: rows are being loaded, or updates are awaited that no server has applied."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.engines.job import JobResult
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps, newest_checkpoint, read_manifest
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train
from tests.support.launched import Launched, running
from tests.support.small import WORDS as SMALL
from tests.system.test_signals import (
    EVAL_EVERY,
    NETWORK,
    WORDS,
    disturb,
    events,
    is_in,
    processes_of,
    require_same,
    resume,
)
from tests.system.test_signals import straight as straight

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

EVERYONE = pytest.mark.parametrize("everyone", [False, True], ids=["launcher", "everyone"])
LIMIT_S = 120.0
WAITING = NETWORK.replace(
    "        time.sleep({train_s} if self.training else {eval_s})\n",
    """\
        self.steps = getattr(self, "steps", 0) + self.training
        if self.steps == {steps} and self.training:
            Path({folder!r}, "last").touch()
            while not Path({folder!r}, "go").exists():
                time.sleep(0.01)
            self.layer.weight.register_hook(lambda gradient: Path({folder!r}, "gone").touch())
""",
).replace("import time\n", "import time\nfrom pathlib import Path\n")
"""A network that waits in the last step before an evaluation, and reports when its gradients are there."""


def stopped(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


@contextmanager
def draining(folder: Path) -> Iterator[tuple[Launched, int]]:
    """A job whose server is stopped when a step is trained whose updates must be applied before the evaluation."""
    (folder / "network.py").write_text(WAITING.format(steps=EVAL_EVERY, folder=str(folder)))
    words = [*WORDS, "cluster=local", "model={kind: custom, dim: 4, file: network.py, name: Net, args: {}}"]
    with Launched(words, folder / "run") as job:

        def wait_for(name: str) -> None:
            poll_for(lambda: (folder / name).exists() or job.process.poll() is not None, LIMIT_S, f"file {name}")
            assert job.process.poll() is None, job.output

        wait_for("last")
        server = job.pids()["embedding-server-0"]
        os.kill(server, signal.SIGSTOP)
        poll_for(lambda: stopped(server), LIMIT_S, "a server that stands still")
        (folder / "go").touch()
        wait_for("gone")
        assert is_in("training")(job.run_dir), "it is not over before its updates are applied"
        yield job, server


@EVERYONE
def test_while_updates_are_awaited(tmp_path: Path, straight: JobResult, everyone: bool) -> None:
    with draining(tmp_path) as (job, server):
        children = [process.pid for process in processes_of(job)]
        disturb(job, everyone, signal.SIGTERM)
        poll_for(lambda: any(event["event"] == "ending" for event in events(job.run_dir)), LIMIT_S, "the signal")
        os.kill(server, signal.SIGCONT)
        code, seconds = job.end(within_s=100.0)
        assert code == 75, job.output
        assert seconds < 60 + 10
        assert "Traceback" not in job.output
        assert running({str(pid): pid for pid in children}) == []
        assert f"persia resume {job.run_dir} goes on from there" in job.output
    assert finished_steps(job.run_dir / CHECKPOINTS) == [EVAL_EVERY]
    assert read_manifest(newest_checkpoint(job.run_dir / CHECKPOINTS)).progress.evaluation_due
    (tmp_path / "network.py").write_text(NETWORK.format(train_s=0, eval_s=0))
    ended = resume(job.run_dir)
    assert ended.returncode == 0, ended.stderr
    require_same(job.run_dir, straight)


MANY = 600_000
"""Rows that take long enough to load to be met at it."""
LOADING = [
    *SMALL,
    *("cluster=local", "embedding.capacity=1_500_000", "train.log_every_steps=10"),
    *("checkpoint.every_steps=20", "checkpoint.grace_s=60", "cluster.stop_timeout_s=10"),
]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "vectors.parquet"
    values = np.random.default_rng(3).standard_normal(4 * MANY).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), 4)
    pq.write_table(pa.table({"id": pa.array(np.arange(MANY)), "vector": lists}), path)
    return path


@pytest.fixture(scope="module")
def straight_from_vectors(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    words = [*LOADING, f"init_from.vectors.feature_0={vectors}", "train.steps=40"]
    return train(words, tmp_path_factory.mktemp("straight") / "run")


def files_of(pid: int) -> list[str]:
    """Files that a process has open or mapped."""
    try:
        opened = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
        return [*opened, *Path(f"/proc/{pid}/maps").read_text().splitlines()]
    except OSError:
        return []


def server_that_loads(job: Launched, what: str) -> int:
    """Stop the server of a job while it reads such a file; return its process."""
    found: list[int] = []

    def is_met() -> bool:
        for child in psutil.Process(job.process.pid).children() if job.process.poll() is None else ():
            try:
                if "embedding-server" in child.cmdline() and any(what in file for file in files_of(child.pid)):
                    os.kill(child.pid, signal.SIGSTOP)
                    found.append(child.pid)
            except psutil.Error:
                continue
        return bool(found) or job.process.poll() is not None

    poll_for(is_met, LIMIT_S, "a server that loads rows")
    assert job.process.poll() is None, job.output
    assert [event for event in events(job.run_dir) if event["event"] in ("ready", "phase")] == [], "it is too late"
    return found[0]


def end_while_loading(job: Launched, what: str, everyone: bool) -> str:
    """Send SIGTERM while the server stands still at loading; return what the command said."""
    with job:
        server = server_that_loads(job, what)
        children = [process.pid for process in processes_of(job)]
        disturb(job, everyone, signal.SIGTERM)
        os.kill(server, signal.SIGCONT)
        code, seconds = job.end(within_s=100.0)
        assert code == 75, job.output
        assert seconds < 60 + 10
        assert "Traceback" not in job.output
        assert running({str(pid): pid for pid in children}) == []
        assert list(job.temporary.glob("persia-*")) == []
        return job.output


@EVERYONE
def test_while_rows_are_loaded(tmp_path: Path, vectors: Path, straight_from_vectors: JobResult, everyone: bool) -> None:
    """First those that a new run begins with, then those of its checkpoint."""
    run_dir = tmp_path / "run"
    words = [*LOADING, f"init_from.vectors.feature_0={vectors}", "resume=auto"]
    said = end_while_loading(Launched([*words, "train.steps=20"], run_dir), "vectors.parquet", everyone)
    assert "resume=auto --run-dir" in said
    assert finished_steps(run_dir / CHECKPOINTS) == []
    train_again([*words, "train.steps=20"], run_dir)
    said = end_while_loading(Launched([*words, "train.steps=40"], run_dir), "/embeddings/", everyone)
    assert f"persia resume {run_dir} goes on from there" in said
    assert finished_steps(run_dir / CHECKPOINTS) == [20]
    train_again([*words, "train.steps=40"], run_dir)
    theirs = newest_checkpoint(straight_from_vectors.run_dir / CHECKPOINTS)
    assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), theirs)
    losses = [
        [(line["step"], line["loss"]) for line in read_journal(each / METRICS) if line["split"] == "train"]
        for each in (run_dir, straight_from_vectors.run_dir)
    ]
    assert losses[0] == losses[1]


def train_again(words: list[str], run_dir: Path) -> None:
    with Launched(words, run_dir) as job:
        assert job.end(within_s=LIMIT_S)[0] == 0, job.output

"""SIGTERM while kernels are compiled, and to commands that use a saved model: all ends soon, and nothing is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.engines.job import JobResult
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps
from tests.conftest import poll_for
from tests.support.jobs import train
from tests.support.launched import Launched, running
from tests.support.lists import lists_job
from tests.support.small import WORDS

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

END_S = 30.0
CLUSTERS = pytest.mark.parametrize("cluster", ["embedded", "local"])


def some_kernels_are_compiled(run_dir: Path) -> bool:
    compiling = [event for event in read_journal(run_dir / EVENTS) if event["event"] == "compiling"]
    return bool(compiling) and 0 < compiling[-1]["done"] < compiling[-1]["total"] - 2


@CLUSTERS
@pytest.mark.parametrize("everyone", [False, True], ids=["launcher", "everyone"])
def test_while_kernels_are_compiled(tmp_path: Path, cluster: str, everyone: bool) -> None:
    run_dir = tmp_path / "run"
    words = [*WORDS, f"cluster={cluster}"]
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    with Launched(words, run_dir, environment) as job:
        poll_for(lambda: some_kernels_are_compiled(run_dir) or job.process.poll() is not None, 300.0, "compiling")
        launcher = psutil.Process(job.process.pid)
        below = [process.pid for process in launcher.children(recursive=True)]
        for pid in [*(below if everyone else ()), job.process.pid]:
            os.kill(pid, signal.SIGTERM)
        code, _ = job.end(within_s=END_S)
        assert code == 75, job.output
        assert "Traceback" not in job.output
        assert running({str(pid): pid for pid in below}) == []
        assert list(job.temporary.glob("persia-*")) == []
    assert finished_steps(run_dir / CHECKPOINTS) == []
    assert "resume=auto --run-dir" in job.output
    command = [sys.executable, "-m", "persia_cli", "train", *words, "resume=auto", "--run-dir", str(run_dir)]
    again = subprocess.run(command, capture_output=True, text=True, timeout=400, env=os.environ | environment)
    assert again.returncode == 0, again.stderr
    assert finished_steps(run_dir / CHECKPOINTS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    folder = tmp_path_factory.mktemp("saved")
    return train(lists_job(folder), folder / "run")


@pytest.fixture(scope="module")
def long_data(saved: JobResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples that take minutes to score."""
    path = tmp_path_factory.mktemp("long") / "long.parquet"
    few = pq.read_table(saved.run_dir.parent / "eval.parquet")
    pq.write_table(pa.concat_tables([few] * (3_000_000 // few.num_rows)).combine_chunks(), path)
    return path


@contextmanager
def started(words: list[str], output: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with output.open("wb") as said:
        process = subprocess.Popen([sys.executable, "-m", "persia_cli", *words], stdout=said, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ended_by_sigterm(words: list[str], output: Path, is_under_way: Callable[[str], bool]) -> str:
    """Run a command, send it SIGTERM when it is in progress, and return its output; it leaves no process behind."""
    with started(words, output) as process:
        poll_for(lambda: is_under_way(output.read_text()) or process.poll() is not None, 120.0, "the command's work")
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        poll_for(lambda: process.poll() is not None, END_S, "the end of the command")
        assert process.returncode == 75, output.read_text()
        assert running({str(each.pid): each.pid for each in below}) == []
    said = output.read_text()
    assert "Traceback" not in said
    assert "; the same command begins again" in said
    return said


@CLUSTERS
def test_while_a_saved_model_is_evaluated(saved: JobResult, long_data: Path, tmp_path: Path, cluster: str) -> None:
    words = ["eval", str(saved.run_dir), "--data", str(long_data), f"cluster={cluster}"]
    before = finished_steps(saved.run_dir / CHECKPOINTS)
    ended_by_sigterm(words, tmp_path / "said", lambda said: "progress  " in said)
    assert finished_steps(saved.run_dir / CHECKPOINTS) == before


@CLUSTERS
def test_while_samples_are_scored(saved: JobResult, long_data: Path, tmp_path: Path, cluster: str) -> None:
    """No half file of scores is left."""
    scores = tmp_path / "scores"
    scores.mkdir()
    words = ["predict", str(saved.run_dir), str(long_data), "-o", str(scores / "s.parquet"), f"cluster={cluster}"]
    ended_by_sigterm(words, tmp_path / "said", lambda said: "progress  " in said)
    assert list(scores.iterdir()) == []

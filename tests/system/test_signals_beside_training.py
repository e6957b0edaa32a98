"""SIGTERM while kernels are compiled, and to commands that use a saved model: all ends soon, and nothing is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps
from tests.conftest import poll_for
from tests.support.launched import Launched, running
from tests.support.small import WORDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

END_S = 30.0
CLUSTERS = pytest.mark.parametrize("cluster", ["embedded", "local"])


def some_kernels_are_compiled(run_dir: Path) -> bool:
    compiling = [event for event in read_journal(run_dir / EVENTS) if event["event"] == "compiling"]
    return bool(compiling) and 0 < compiling[-1]["done"] < compiling[-1]["total"] - 2


@CLUSTERS
def test_while_kernels_are_compiled(tmp_path: Path, cluster: str) -> None:
    run_dir = tmp_path / "run"
    words = [*WORDS, f"cluster={cluster}"]
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    with Launched(words, run_dir, environment) as job:
        poll_for(lambda: some_kernels_are_compiled(run_dir) or job.process.poll() is not None, 300.0, "compiling")
        driver = psutil.Process(job.process.pid)
        below = [process.pid for process in driver.children(recursive=True)]
        for pid in [*below, job.process.pid]:
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


@pytest.mark.parametrize(("command", "cluster"), [("eval", "local"), ("predict", "embedded")])
def test_while_a_saved_model_scores_samples(
    lists: Path, lists_run: Path, tmp_path: Path, command: str, cluster: str
) -> None:
    """The command ends soon, and leaves no process, no checkpoint and no half file of scores."""
    few, data, scores = pq.read_table(lists / "eval.parquet"), tmp_path / "long.parquet", tmp_path / "scores"
    pq.write_table(pa.concat_tables([few] * (3_000_000 // few.num_rows)).combine_chunks(), data)
    scores.mkdir()
    given = ["--data", str(data)] if command == "eval" else [str(data), "-o", str(scores / "s.parquet")]
    before = finished_steps(lists_run / CHECKPOINTS)
    words = [sys.executable, "-m", "persia_cli", command, str(lists_run), *given, f"cluster={cluster}"]
    output = tmp_path / "said"
    with output.open("wb") as said, subprocess.Popen(words, stdout=said, stderr=said) as process:
        try:
            poll_for(lambda: "progress  " in output.read_text() or process.poll() is not None, 120.0, "scores")
            below = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
            poll_for(lambda: process.poll() is not None, END_S, "the end of the command")
        finally:
            process.kill()
    assert process.returncode == 75, output.read_text()
    assert running({str(each.pid): each.pid for each in below}) == []
    assert "Traceback" not in output.read_text()
    assert "; the same command begins again" in output.read_text()
    assert list(scores.iterdir()) == []
    assert finished_steps(lists_run / CHECKPOINTS) == before

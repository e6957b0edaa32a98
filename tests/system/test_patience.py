"""The job waits for slow or stopped processes, and names stuck ones."""

import os
import signal
import time
from pathlib import Path

import pytest

from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from tests.conftest import poll_for
from tests.support.launched import ENDLESS, Launched, running

NETWORK = """
import time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, seconds):
        super().__init__()
        self.layer = nn.Linear(shape.dense + sum(feature.dim for feature in shape.pooled), shape.tasks)
        self.seconds = seconds

    def forward(self, batch):
        if len(batch.dense) > 2:  # no rehearsal
            time.sleep(self.seconds)
            self.seconds = 0
        return self.layer(torch.cat([batch.dense, *(group.flatten(1) for group in batch.groups)], dim=1))
"""
"""Its first step takes as many seconds as the configuration says."""

SILENCE_S = 3

pytestmark = pytest.mark.processes


def words(folder: Path, seconds: float) -> list[str]:
    (folder / "network.py").write_text(NETWORK)
    kept = [word for word in ENDLESS if "hidden" not in word]
    model = f"model={{kind: custom, dim: 4, file: network.py, name: Net, args: {{seconds: {seconds}}}}}"
    return [*kept, model, f"cluster.silence_timeout_s={SILENCE_S}", "cluster.stop_timeout_s=1"]


@pytest.mark.slow
def test_a_slow_first_step_is_no_silence(tmp_path: Path) -> None:
    with Launched(words(tmp_path, 3 * SILENCE_S), tmp_path / "run") as job:
        job.wait_for_training()


@pytest.mark.slow
def test_a_step_that_never_ends_is_named(tmp_path: Path) -> None:
    with Launched([*words(tmp_path, 3600), "cluster.work_timeout_s=15"], tmp_path / "run") as job:
        poll_for(lambda: job.process.poll() is not None, 90.0, "the end of the job")
        pids = job.pids()
        assert job.process.returncode == 1
        assert f"error: nn-worker-0 (process {pids['nn-worker-0']} on " in job.output
        assert "has been training step 0 for 15 s; see its log (cluster.work_timeout_s raises the limit)" in job.output
        assert running(pids) == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_that_is_stopped_as_a_whole_goes_on_where_it_was(ranks: int, tmp_path: Path) -> None:
    more = [f"cluster.silence_timeout_s={SILENCE_S}", "cluster.stop_timeout_s=1", f"cluster.nn_workers={ranks}"]
    with Launched([*ENDLESS, *more], tmp_path / "run") as job:
        everyone = [*job.wait_for_training().values(), job.process.pid]
        for pid in everyone:
            os.kill(pid, signal.SIGSTOP)
        before = len(read_journal(job.run_dir / METRICS))
        time.sleep(3 * SILENCE_S)  # no process may react to this pause
        for pid in everyone:
            os.kill(pid, signal.SIGCONT)
        poll_for(lambda: len(read_journal(job.run_dir / METRICS)) > before + 20, 30.0, "training that goes on")
        # Long enough for a process that counts this pause against another to report it.
        poll_for(lambda: len(read_journal(job.run_dir / METRICS)) > before + 60, 30.0, "training that goes on")
        assert job.process.poll() is None, job.output
        assert [e for e in read_journal(job.run_dir / EVENTS) if e.get("phase") == "failed"] == []


SLOW_COMPILER = """#!/bin/sh
{wait}
exec g++ "$@"
"""


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine compiles for minutes
def test_compiling_takes_its_time_and_is_reported(tmp_path: Path) -> None:
    compiler = tmp_path / "slow-g++"
    compiler.write_text(SLOW_COMPILER.format(wait="sleep 2"))
    compiler.chmod(0o755)
    more = ["train.compile=true", f"cluster.silence_timeout_s={2 * SILENCE_S}"]
    environment = {"CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with Launched([*ENDLESS, *more], tmp_path / "run", environment) as job:
        poll_for(lambda: read_journal(job.run_dir / METRICS) or job.process.poll() is not None, 540.0, "a step")
        assert job.process.poll() is None, job.output
        waits = [event for event in read_journal(job.run_dir / EVENTS) if event["event"] == "waiting"]
        assert {(event["replica"], event["doing"]) for event in waits} == {("nn-worker-0", "compiling the network")}
        assert 'event=waiting replica=nn-worker-0 doing="compiling the network" seconds=1' in job.output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_compiler_that_hangs_is_named_and_ended(tmp_path: Path) -> None:
    compiler, mark = tmp_path / "hanging-g++", tmp_path / "pids"
    compiler.write_text(SLOW_COMPILER.format(wait=f"echo $$ >> {mark}; exec sleep 3600"))
    compiler.chmod(0o755)
    more = ["train.compile=true", "cluster.work_timeout_s=15"]
    environment = {"CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with Launched([*ENDLESS, *more], tmp_path / "run", environment) as job:
        poll_for(lambda: job.process.poll() is not None, 360.0, "the end of the job")
        assert job.process.returncode == 1
        assert "has been compiling the network for 15 s" in job.output
        assert running({line: int(line) for line in mark.read_text().split()}) == []

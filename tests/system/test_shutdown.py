"""The end of jobs that are interrupted, killed or stuck; nothing is left, and the cause is named."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from persia_cli.observe.history import RunOutcome, read_history
from persia_cli.observe.journal import EVENTS, read_journal
from tests.conftest import poll_for
from tests.support.launched import ENDLESS, KILLED, Launched, running

REPLICAS = ("coordinator-0", "embedding-server-0", "embedding-worker-0", "data-loader-0", "nn-worker-0")
TWO_RANKS = ["cluster.nn_workers=2"]
NETWORK = """
import torch
from torch import distributed, nn

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape.dense + sum(feature.dim for feature in shape.pooled), shape.tasks)
        self.batches = 0

    def forward(self, batch):
        self.batches += 1
        if self.batches > 100 and distributed.get_rank() == 0:
            raise ValueError("one hundred batches are enough")
        return self.layer(torch.cat([batch.dense, *(group.flatten(1) for group in batch.groups)], dim=1))
"""

pytestmark = pytest.mark.processes


def one_fast(*names: str) -> list[object]:
    """The first name for every run of the tests, the others for the slow ones."""
    return [names[0], *(pytest.param(name, marks=pytest.mark.slow) for name in names[1:])]


def imported(log: Path) -> set[str]:
    """The top packages whose import a process logged because of PYTHONPROFILEIMPORTTIME."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def test_an_interrupt_ends_everything(tmp_path):
    with Launched(ENDLESS, tmp_path / "run", {"PYTHONPROFILEIMPORTTIME": "1"}) as job:
        pids = job.wait_for_training()
        job.process.send_signal(signal.SIGINT)
        code, seconds = job.end(within_s=20.0)

        assert code == 130
        assert seconds < 10.0
        assert running(pids) == []
        assert "interrupted; everything is stopped" in job.output
        said = [line for line in job.output.splitlines() if not line.startswith("import time:")]
        assert not [line for line in said if "error" in line or "Traceback" in line]
        assert list(job.temporary.glob("persia-*")) == []
        logs = {name: job.run_dir / "roles" / f"{name}.log" for name in REPLICAS}
        assert "stopped by SIGINT" in logs["coordinator-0"].read_text()
        assert all("coordinator-0 was stopped (SIGINT)" in logs[name].read_text() for name in REPLICAS[1:])
        assert read_history(job.run_dir).outcome(time.time()) == RunOutcome("stopped")

    assert "torch" in imported(logs["nn-worker-0"])
    for name in REPLICAS[:-1]:
        assert imported(logs[name]) & {"torch", "hydra", "omegaconf", "rich"} == set()
        assert "numpy" in imported(logs[name])

    with Launched(ENDLESS, tmp_path / "run") as again:
        code, _ = again.end(within_s=30.0)
        assert code == 2
        sentence = f"error: {tmp_path / 'run'} already contains a run; choose another --run-dir or remove it"
        assert sentence in again.output


@pytest.mark.slow
def test_an_interrupt_ends_a_job_in_one_process(tmp_path):
    with Launched([*ENDLESS, "cluster=embedded"], tmp_path / "run") as job:
        job.wait_for_training()
        job.process.send_signal(signal.SIGINT)
        code, _ = job.end(within_s=10.0)

        assert code == 130
        assert "interrupted; everything is stopped" in job.output
        assert "Traceback" not in job.output
        [stopped] = [event for event in read_journal(job.run_dir / EVENTS) if event.get("phase") == "stopped"]
        assert stopped["step"] > 0  # the one that was reached


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait_for_a_replica_that_hangs(tmp_path):
    with Launched([*ENDLESS, "cluster.stop_timeout_s=60"], tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids["embedding-worker-0"], signal.SIGSTOP)
        job.process.send_signal(signal.SIGINT)
        poll_for(lambda: running(pids) == ["embedding-worker-0"], 10.0, "all others to end")
        job.process.send_signal(signal.SIGINT)
        code, seconds = job.end(within_s=20.0)

        assert code == 130
        assert seconds < 5.0
        assert running(pids) == []


def test_no_replica_outlives_a_launcher_that_is_killed(tmp_path):
    with Launched(ENDLESS, tmp_path / "run") as job:
        pids = job.wait_for_training()
        assert running(pids) == list(pids)
        job.process.kill()
        poll_for(lambda: running(pids) == [], 5.0, "the end of all replicas")


@pytest.mark.parametrize("name", one_fast("embedding-server-0", *(set(REPLICAS) - {"embedding-server-0"})))
def test_a_replica_that_is_killed_is_named(tmp_path, name):
    with Launched([*ENDLESS, "recovery.max_restarts=0"], tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids[name], signal.SIGKILL)
        code, _ = job.end(within_s=15.0)

        assert code == 1
        death = f"{name} {KILLED}"
        assert f"error: {death}\nThe job was stopped. The end of {job.run_dir}" in job.output
        assert read_history(job.run_dir).outcome(time.time()) == RunOutcome("failed", death)
        assert "instruction 1: TrainSteps" in job.output or name == "coordinator-0"
        assert running(pids) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLICAS)
def test_a_replica_that_is_stuck_is_named(tmp_path, name):
    words = [*ENDLESS, "cluster.silence_timeout_s=3", "cluster.stop_timeout_s=1"]
    with Launched(words, tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids[name], signal.SIGSTOP)
        code, seconds = job.end(within_s=30.0)

        assert code == 1
        assert seconds < 15.0
        errors = [line for line in job.output.splitlines() if line.startswith("error:")]
        assert len(errors) == 1
        no_word = rf"{name.removesuffix('-0' if name == 'coordinator-0' else '')} at \S+ has not answered for \S+ s"
        stuck = rf"{name} \(process {pids[name]} on \S+\) has shown no progress for 3 s"
        assert re.search(f"{no_word}|{stuck}", errors[0])
        assert running(pids) == []


def test_a_replica_that_fails_at_its_start_reports_the_cause(tmp_path):
    # A rank alone cannot import it: trying the network out before the start does not find this.
    broken = 'import sys\nif "nn-worker" in sys.argv:\n    import no_such_module\n'
    (tmp_path / "broken.py").write_text(broken + NETWORK)
    words = [word for word in ENDLESS if "hidden" not in word]
    words += ["model={kind: custom, dim: 4, file: broken.py, name: Net, args: {}}"]
    with Launched(words, tmp_path / "run") as job:
        code, _ = job.end(within_s=60.0)

        assert code == 2
        assert (
            f"error: nn-worker-0: model.file={tmp_path / 'broken.py'} cannot be imported: "
            "ModuleNotFoundError: No module named 'no_such_module'"
        ) in job.output


@pytest.mark.slow
def test_a_gpu_without_memory_is_an_error_of_the_user(tmp_path):
    full = NETWORK.replace("self.batches > 100 and distributed.get_rank() == 0", "batch.size > 2")
    full = full.replace('ValueError("one hundred batches are enough")', 'torch.OutOfMemoryError("CUDA out of memory")')
    (tmp_path / "network.py").write_text(full)
    words = [word for word in ENDLESS if "hidden" not in word]
    words += ["model={kind: custom, dim: 4, file: network.py, name: Net, args: {}}"]
    with Launched(words, tmp_path / "run") as job:
        code, _ = job.end(within_s=60.0)

        assert code == 2
        assert re.search(r"error: nn-worker-0: the memory of \w+ is full at train.batch_size=\d+: use", job.output)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP", "SIGINT"])
def test_of_two_ranks_the_one_that_ended_is_named_not_the_one_that_noticed(tmp_path, number):
    words = [*ENDLESS, *TWO_RANKS, "cluster.silence_timeout_s=4", "cluster.stop_timeout_s=1"]
    with Launched(words, tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids["nn-worker-0"], signal.Signals[number])
        code, _ = job.end(within_s=30.0)

        assert code == 1
        said = job.output.partition("error: ")[2]
        how = {"SIGKILL": "was killed by SIGKILL", "SIGINT": "was stopped (SIGINT)"}
        if number in how:
            assert said.startswith(f"nn-worker-0 {how[number]}")
        else:
            assert re.match(r"nn-worker-0 \(process|data-loader-0: nn-worker-0 at", said)
        assert running(pids) == []


@pytest.mark.slow
def test_of_two_ranks_the_one_that_failed_is_reported(tmp_path):
    (tmp_path / "network.py").write_text(NETWORK)
    words = [word for word in ENDLESS if "hidden" not in word]
    words += [*TWO_RANKS, "model={kind: custom, dim: 4, file: network.py, name: Net, args: {}}"]
    with Launched(words, tmp_path / "run") as job:
        code, _ = job.end(within_s=60.0)

        assert code == 1
        assert "error: nn-worker-0: internal error: ValueError: one hundred batches are enough" in job.output

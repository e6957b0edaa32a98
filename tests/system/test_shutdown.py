"""The end of jobs that are interrupted, killed, stuck or never begin; nothing is left, and the cause is named."""

import itertools
import os
import re
import shutil
import signal
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from persia_cli.data.read.batch import Batch
from persia_cli.data.read.generator import GeneratedSource
from persia_cli.engines.embedded import EmbeddedEngine
from persia_cli.engines.job import prepare_run_dir
from persia_cli.errors import PersiaError, UserError, WireError
from persia_cli.kernels.toolchain.needs import SERVER
from persia_cli.kernels.toolchain.warm import warm
from persia_cli.observe.history import RunOutcome, read_history
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.observe.overview import summarize
from persia_cli.roles.session import CoordinatorSession
from persia_cli.roles.start import RoleStart, run_coordinator, run_role
from persia_cli.wire.sockets import Context
from tests.conftest import poll_for
from tests.support.jobs import plan, train
from tests.support.launched import ENDLESS, KILLED, Launched, running
from tests.support.small import WORDS

REPLICAS = ("coordinator-0", "embedding-server-0", "embedding-worker-0", "data-loader-0", "nn-worker-0")
NETWORK = """
import sys
import time
import torch
from torch import nn

{import_}
class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape.dense + sum(feature.dim for feature in shape.pooled), shape.tasks)
        self.steps = 0

    def forward(self, batch):
        self.steps += len(batch.dense) > 2  # no rehearsal
        {first}
        return self.layer(torch.cat([batch.dense, *(group.flatten(1) for group in batch.groups)], dim=1))
"""
SILENCE_S = 3


def with_network(folder: Path, first: str = "pass", import_: str = "") -> list[str]:
    """Write a network that begins a step with a statement; return the arguments of an endless job that trains it."""
    (folder / "network.py").write_text(NETWORK.format(first=first, import_=import_))
    kept = [word for word in ENDLESS if "hidden" not in word]
    return [*kept, "model={kind: custom, dim: 4, file: network.py, name: Net, args: {}}"]


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


def test_no_replica_outlives_a_driver_that_is_killed(tmp_path):
    with Launched(ENDLESS, tmp_path / "run") as job:
        pids = job.wait_for_training()
        assert running(pids) == list(pids)
        assert summarize(job.run_dir, time.time()).state == "running"
        job.process.kill()
        job.process.wait(30.0)
        poll_for(lambda: running(pids) == [], 5.0, "the end of all replicas")
        # A process whose first thread has ended counts as ended, while another may still be closing its files.
        poll_for(lambda: summarize(job.run_dir, time.time()).state == "dead", 5.0, "a run that is known to be dead")


@pytest.mark.parametrize("name", [pytest.param("nn-worker-0", marks=pytest.mark.slow), "coordinator-0"])
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


def test_a_replica_that_fails_at_its_start_reports_the_cause(tmp_path):
    # A rank alone cannot import it: trying the network out before the start does not find this.
    words = with_network(tmp_path, import_='if "nn-worker" in sys.argv:\n    import no_such_module\n')
    with Launched(words, tmp_path / "run") as job:
        code, _ = job.end(within_s=60.0)

        assert code == 2
        assert f"error: nn-worker-0: model.file={tmp_path / 'network.py'} cannot be imported: " in job.output
        assert "No module named 'no_such_module'" in job.output


@pytest.mark.slow
def test_a_gpu_without_memory_is_an_error_of_the_user(tmp_path):
    words = with_network(tmp_path, first='if self.steps: raise torch.OutOfMemoryError("CUDA out of memory")')
    with Launched(words, tmp_path / "run") as job:
        code, _ = job.end(within_s=60.0)

        assert code == 2
        assert re.search(r"error: nn-worker-0: the memory of \w+ is full at train.batch_size=\d+: use", job.output)


START_S = 3
"""Far longer than it takes the one replica that there is to join."""


def test_a_replica_that_never_joins_is_named_and_the_others_are_sent_away(tmp_path):
    warm([SERVER])  # kernels are compiled before a replica joins
    job = plan([*WORDS, f"cluster.start_timeout_s={START_S}", "cluster.embedding_servers=2"], tmp_path / "run")
    prepare_run_dir(job)
    address = f"inproc://{uuid.uuid4()}"
    errors: dict[str, BaseException] = {}

    def coordinate() -> None:
        try:
            run_coordinator(context, address, job.run, job.job)
        except PersiaError as error:
            errors["coordinator"] = error

    with Context() as context:
        coordinator = threading.Thread(target=coordinate, name="coordinator")
        coordinator.start()
        with pytest.raises(WireError) as told:
            run_role(context, RoleStart("embedding-server", 0, address))
        coordinator.join()

    missing = "embedding-server-1, embedding-worker-0, data-loader-0, nn-worker-0"
    assert f"not joined after {START_S} s: {missing}" in str(errors["coordinator"])
    assert f"the job has ended: {errors['coordinator']}" in str(told.value)


def test_a_signal_to_a_waiting_replica_ends_the_job_resumably(tmp_path):
    job = plan(WORDS, tmp_path / "run")
    prepare_run_dir(job)
    address = f"inproc://{uuid.uuid4()}"
    sessions: list[CoordinatorSession] = []

    def signal_it(session: CoordinatorSession) -> None:
        sessions.append(session)
        session.signals.append("SIGTERM")

    with Context() as context:
        coordinator = threading.Thread(target=run_coordinator, args=(context, address, job.run, job.job))
        coordinator.start()
        run_role(context, RoleStart("data-loader", 0, address), signal_it)
        coordinator.join()
    [stopped] = [event for event in read_journal(tmp_path / "run" / EVENTS) if event.get("phase") == "stopped"]
    assert (stopped["signal"], stopped["replica"]) == ("SIGTERM", "data-loader-0")
    assert sessions[0].is_resumable


def test_a_second_run_in_a_run_directory_is_refused(tmp_path):
    job = plan(WORDS, tmp_path / "run")
    prepare_run_dir(job)
    with pytest.raises(UserError) as refused:
        prepare_run_dir(job)
    assert str(refused.value) == f"{tmp_path / 'run'} already contains a run; choose another --run-dir or remove it"


GONE = "was removed while the job was running; the job was stopped and its results are lost"


def remove(folder: Path) -> None:
    """Remove a folder while others may still make files in it."""

    def removed() -> bool:
        with suppress(OSError):
            shutil.rmtree(folder)
        return not folder.exists()

    poll_for(removed, 10.0, f"the removal of {folder}")


def test_a_run_directory_that_is_removed_ends_the_job(tmp_path: Path) -> None:
    words = [*(word for word in ENDLESS if not word.startswith("cluster")), "cluster=embedded"]
    job = plan(words, tmp_path / "run")

    def follow() -> None:
        if (job.run_dir / "metrics.jsonl").exists():
            remove(job.run_dir)

    with pytest.raises(UserError, match=f"run {GONE}"):
        EmbeddedEngine().launch(job, follow)
    assert not job.run_dir.exists()


@pytest.mark.slow
def test_a_slow_first_step_is_no_silence(tmp_path: Path) -> None:
    words = with_network(tmp_path, f"time.sleep({3 * SILENCE_S} if self.steps == 1 else 0)")
    silence = [f"cluster.silence_timeout_s={SILENCE_S}", "cluster.stop_timeout_s=1"]
    with Launched([*words, *silence], tmp_path / "run") as job:
        job.wait_for_training()


@pytest.mark.slow
def test_a_step_that_never_ends_is_named(tmp_path: Path) -> None:
    words = with_network(tmp_path, "time.sleep(3600 if self.steps else 0)")
    with Launched([*words, "cluster.work_timeout_s=15", "cluster.stop_timeout_s=1"], tmp_path / "run") as job:
        poll_for(lambda: job.process.poll() is not None, 90.0, "the end of the job")
        pids = job.pids()
        assert job.process.returncode == 1
        assert f"error: nn-worker-0 (process {pids['nn-worker-0']} on " in job.output
        assert "has been training step 0 for 15 s; see its log (cluster.work_timeout_s raises the limit)" in job.output
        assert running(pids) == []


@pytest.mark.slow
def test_a_job_that_is_stopped_as_a_whole_goes_on_where_it_was(tmp_path: Path) -> None:
    more = [f"cluster.silence_timeout_s={SILENCE_S}", "cluster.stop_timeout_s=1", "cluster.nn_workers=2"]
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


@pytest.mark.timeout(120)
def test_a_read_may_take_longer_than_the_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, calls = GeneratedSource.read, itertools.count()

    def slowly(source: GeneratedSource, *where: int) -> Batch:
        if next(calls) == 5:
            threading.Event().wait(3.0)
        return read(source, *where)

    monkeypatch.setattr(GeneratedSource, "read", slowly)
    result = train([*WORDS, "cluster=embedded", "cluster.silence_timeout_s=1", "train.steps=20"], tmp_path / "run")
    assert next(calls) > 5
    assert result.metrics[-1]["step"] == 20

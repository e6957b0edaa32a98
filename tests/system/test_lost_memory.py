"""With `recovery.lost_memory=partial` a server that loses its memory loads its rows again, and counts what that costs.

The network of these tests has the gradient 1 for every row and sample, and rows begin at 0, so with plain SGD and a
rate of 1 a row's value says how many samples it was updated for, whoever else counts what.
"""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from persia_cli.storage.places import Place
from persia_cli.store.chain import read_chain
from persia_cli.store.manifest import CHECKPOINTS, checkpoint_folder, finished_steps
from tests.conftest import poll_for
from tests.support.launched import Launched
from tests.support.small import STEPS, WORDS
from tests.system.test_reattach import own_memory_files
from tests.system.test_recovery import events_of, kill_at

NETWORK = """
import torch
from torch import nn


class Ones(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        ctx.shape = rows.shape
        return rows.new_zeros(rows.shape[0], 1)

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones(ctx.shape)


class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        return Ones.apply(batch.concatenated(self.shape.pooled)) + 0.0 * self.bias
"""
BATCH, RANKS, LONG = 32, 2, 2 * STEPS
ALONE = 6
"""Tables of one id, which every sample has."""
SMALL = [
    *WORDS,
    "mode=hybrid",
    "mode.staleness=4",
    "optimizer=sgd",
    "optimizer.embedding.lr=1",
    "optimizer.embedding.schedule={kind: constant, warmup_steps: 0}",
    "embedding.init_bound=0",
    f"dataset.generator.cardinalities={[1] * ALONE + [300]}",
    f"dataset.generator.train_rows={BATCH * LONG}",
    "train.log_every_steps=5",
    "cluster=local",
    f"cluster.nn_workers={RANKS}",
    "cluster.embedding_workers=2",
    "cluster.embedding_servers=2",
    "embedding.capacity=2_000_000",
    "checkpoint.every_steps=50",
    "checkpoint.keep=2",
    "recovery.lost_memory=partial",
    "recovery.max_lost_updates=1",
]
LIMIT_S = 180.0

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def counting(folder: Path) -> list[str]:
    """The job's words, with a network that counts."""
    (folder / "network.py").write_text(NETWORK)
    return [*SMALL, f"model={{kind: custom, dim: 4, file: {folder / 'network.py'}, name: Net, args: {{}}}}"]


def missed_by_rows(checkpoints: Place, steps: int = LONG) -> dict[str, set[int]]:
    """How many updates the rows of the tables of one id have missed, by their values in the last checkpoint."""
    chain = read_chain(checkpoint_folder(checkpoints, finished_steps(checkpoints)[-1]))
    rows = [
        (file.rows.first > 0, row)
        for file in chain.row_files(with_dense=False)
        for batch in file.batches()
        for row in batch.to_pylist()
        if row["table"] != f"feature_{ALONE}"
    ]
    assert len(rows) == ALONE
    missed: dict[str, set[int]] = {"embedding-server-0": set(), "embedding-server-1": set()}
    for on_second, row in rows:
        [value] = set(row["embedding"])
        updates, rest = divmod(-value, BATCH // RANKS)
        assert rest == 0, row
        missed[f"embedding-server-{int(on_second)}"].add(RANKS * steps - int(updates))
    assert all(missed.values()), "each server has such a row"
    return missed


def assert_counted(job: Launched, *names: str, checkpoints: Place | None = None) -> list[dict[str, Any]]:
    """Compare what a job says that it has lost with what rows have missed; return the events of its recoveries.

    `checkpoints` is where the job saves, if that is not its run directory.
    """
    code, _ = job.end(within_s=LIMIT_S)
    assert code == 0, job.output[-3000:]
    recovered = events_of(job, "recovered")
    assert sorted(event["replica"] for event in recovered) == sorted(names)
    lost = {"embedding-server-0": 0, "embedding-server-1": 0}
    for event in recovered:
        lost[event["replica"]] += event["lost"]
        tables = dict.fromkeys((f"feature_{number}" for number in range(ALONE + 1)), event["lost"])
        assert event["lost_of_tables"] == tables
    assert missed_by_rows(checkpoints or job.run_dir / CHECKPOINTS) == {
        name: {updates} for name, updates in lost.items()
    }
    return recovered


def kill(job: Launched, number: signal.Signals, *names: str) -> None:
    pids = job.pids() | {event["replica"]: event["pid"] for event in events_of(job, "recovered")}
    for name in names:
        os.kill(pids[name], number)


def wait_for_checkpoint(job: Launched, step: int) -> None:
    folder = job.run_dir / CHECKPOINTS
    poll_for(lambda: job.process.poll() is not None or step in finished_steps(folder), LIMIT_S, "a checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize("names", [("embedding-server-1",), ("embedding-server-0", "embedding-server-1")], ids="+".join)
@pytest.mark.parametrize("words", [[], ["checkpoint.full_every=4"]], ids=["full", "chain"])
def test_a_server_alone_goes_back_and_says_what_that_costs(
    tmp_path: Path, words: list[str], names: tuple[str, ...]
) -> None:
    with Launched([*counting(tmp_path), *words], tmp_path / "run") as job:
        kill_at(job, 120, *names)
        for event in assert_counted(job, *names):
            assert event["loaded"] >= 50
            assert f"lost={event['lost']} loaded={event['loaded']}" in job.output


@pytest.mark.slow
def test_a_server_that_dies_again_and_again_counts_each_update_once(tmp_path: Path) -> None:
    with Launched(counting(tmp_path), tmp_path / "run") as job:
        kill_at(job, 60, "embedding-server-0")
        for deaths in (1, 2):
            poll_for(lambda deaths=deaths: len(events_of(job, "recovered")) == deaths, LIMIT_S, "a new process")
            kill(job, signal.SIGKILL, "embedding-server-0")
        assert_counted(job, *["embedding-server-0"] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fault", "damage"])
def test_kept_memory_that_cannot_be_used_is_loaded_again(tmp_path: Path, how: str) -> None:
    with Launched(counting(tmp_path), tmp_path / "run") as job:
        wait_for_checkpoint(job, 50)
        if how == "fault":
            kill(job, signal.SIGSEGV, "embedding-server-1")
        else:
            job.process.send_signal(signal.SIGSTOP)
            kill(job, signal.SIGKILL, "embedding-server-1")
            [file] = [file for file in own_memory_files(job) if "server-1" in str(file.readlink())]
            with file.open("r+b") as memory:
                memory.write(b"no memory")
            job.process.send_signal(signal.SIGCONT)
        poll_for(lambda: events_of(job, "recovered"), LIMIT_S, "a new process")
        # Now its memory is as good as any: nothing more is lost.
        kill(job, signal.SIGKILL, "embedding-server-1")
        _, second = assert_counted(job, "embedding-server-1", "embedding-server-1")
        assert second["lost"] == 0


@pytest.mark.slow
def test_without_a_checkpoint_a_server_begins_anew(tmp_path: Path) -> None:
    words = [*counting(tmp_path), "checkpoint.every_steps=null"]
    with Launched(words, tmp_path / "run") as job:
        kill_at(job, 60, "embedding-server-1")
        [event] = assert_counted(job, "embedding-server-1")
        assert event["loaded"] == 0
        assert event["lost"] >= 60 * RANKS - 2 * 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("every", ["50", "null"])
def test_more_losses_than_allowed_end_the_job(tmp_path: Path, every: str) -> None:
    words = [*counting(tmp_path), f"checkpoint.every_steps={every}", "recovery.max_lost_updates=0.000001"]
    with Launched(words, tmp_path / "run") as job:
        kill_at(job, 80, "embedding-server-1")
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 1
        said = " ".join(job.output.split())
        assert "with the memory of embedding-server-1" in said
        assert "more than recovery.max_lost_updates=1e-06 allows" in said


@pytest.mark.slow
def test_rows_of_another_number_of_servers_are_loaded(tmp_path: Path) -> None:
    words = counting(tmp_path)
    with Launched([*words, "cluster.embedding_servers=3", "train.steps=100"], tmp_path / "three") as job:
        assert job.end(within_s=LIMIT_S)[0] == 0, job.output[-3000:]
    words += [f"resume={tmp_path / 'three'}", "checkpoint.every_steps=null"]
    with Launched(words, tmp_path / "run") as job:
        kill_at(job, 150, "embedding-server-0")
        [event] = assert_counted(job, "embedding-server-0")
        assert event["loaded"] == 100

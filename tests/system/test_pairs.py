"""Two processes of different roles are killed at the same moment of a job, which ends by itself as if nothing had been.

Whoever can go on does so in a new process; where a death takes the job back to a checkpoint, it all is trained again.
In sync mode the result has the bits of an undisturbed run. In hybrid mode the network of `test_lost_memory` counts, row
by row, how many updates are in the model.
"""

import os
import random
import signal
from itertools import combinations
from pathlib import Path

import pytest

from persia_cli.launch.job import JobResult, result_of
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.manifest import CHECKPOINTS, finished_steps
from tests.conftest import poll_for
from tests.support.jobs import losses, train
from tests.support.launched import Launched
from tests.support.small import STEPS, WORDS
from tests.system.test_lost_memory import RANKS, counting, missed_by_rows
from tests.system.test_recovery import events_of, rows_of

ROLES = ("data-loader-1", "embedding-worker-0", "embedding-server-1", "nn-worker-0", "coordinator-0")
PAIRS = list(combinations(ROLES, 2))
EVERY, LIMIT_S = 40, 240.0
CLUSTER = [
    "cluster=local",
    "cluster.server_memory=shared",
    "cluster.data_loaders=2",
    "cluster.embedding_workers=2",
    "cluster.embedding_servers=2",
    f"checkpoint.every_steps={EVERY}",
    "train.log_every_steps=5",
]

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]


def run_and_kill(words: list[str], run_dir: Path, names: tuple[str, str], seed: int, steps: int) -> Launched:
    """Run a job to its good end, and kill two of its processes at a random step after its first checkpoint."""
    step = random.Random(f"{names} {seed}").randrange(EVERY, steps * 2 // 3)

    def is_due(job: Launched) -> bool:
        lines = read_journal(job.run_dir / METRICS)
        return bool(lines and lines[-1]["step"] >= step and finished_steps(job.run_dir / CHECKPOINTS))

    with Launched(words, run_dir) as job:
        poll_for(lambda: job.process.poll() is not None or is_due(job), LIMIT_S, f"step {step}")
        pids = job.pids()
        for name in names:
            os.kill(pids[name], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
        recovered = {event["replica"] for event in events_of(job, "recovered")}
        assert recovered & set(names), "one took the job back with it, or each was replaced"
        assert all(event["lost"] == 0 for event in events_of(job, "recovered"))
        return job


def dense_of(run_dir: Path) -> dict[str, bytes]:
    """The files of dense weights in the last checkpoint."""
    folder = run_dir / CHECKPOINTS / f"step-{finished_steps(run_dir / CHECKPOINTS)[-1]}" / "dense"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train(
        [*WORDS, "train.log_every_steps=5", "cluster=embedded"], tmp_path_factory.mktemp("undisturbed") / "run"
    )


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
@pytest.mark.parametrize("seed", range(20))
def test_in_sync_mode_the_result_has_the_same_bits(
    undisturbed: JobResult, tmp_path: Path, names: tuple[str, str], seed: int
) -> None:
    job = run_and_kill([*WORDS, *CLUSTER], tmp_path / "run", names, seed, STEPS)
    result = result_of(job.run_dir)
    assert losses(result) == losses(undisturbed)
    assert rows_of(job.run_dir) == rows_of(undisturbed.run_dir)
    assert dense_of(job.run_dir) == dense_of(undisturbed.run_dir) != {}


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
@pytest.mark.parametrize("seed", range(20))
def test_in_hybrid_mode_every_update_is_in_the_model_once(tmp_path: Path, names: tuple[str, str], seed: int) -> None:
    words = [*counting(tmp_path), *CLUSTER, "recovery.lost_memory=rollback", f"cluster.nn_workers={RANKS}"]
    job = run_and_kill(words, tmp_path / "run", names, seed, 2 * STEPS)
    assert missed_by_rows(job.run_dir) == {"embedding-server-0": {0}, "embedding-server-1": {0}}

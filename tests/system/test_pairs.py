"""Processes of one role, or of two at the same moment, are killed again and again in a job, which ends by itself.

Whoever can go on does so in a new process; where a death takes the job back to a checkpoint, it all is trained again.
In sync mode the result has the bits of an undisturbed run. In hybrid mode the network of `tests.support.counting`
counts, row by row, how many updates are in the model.
"""

import random
import signal
import time
from itertools import combinations, takewhile
from pathlib import Path

import pytest

from persia_cli.drill.processes import replicas_of
from persia_cli.launch.job import JobResult, result_of
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.manifest import CHECKPOINTS, finished_steps
from tests.conftest import poll_for
from tests.support.counting import RANKS, counting, missed_by_rows
from tests.support.jobs import losses, train
from tests.support.launched import Launched
from tests.support.small import WORDS
from tests.system.test_recovery import events_of, rows_of

ROLES = ("data-loader-1", "embedding-worker-0", "embedding-server-1", "nn-worker-0", "coordinator-0")
GROUPS = [*((role,) for role in ROLES), *combinations(ROLES, 2)]
NOT_WAITED_FOR = {"data-loader-1", "coordinator-0"}
"""Training goes on while one of two loaders is dead, or the coordinator, and may be over before their last deaths."""
LEAST = 3
"""Moments that a job has at least in which only these die."""
DEATHS = (5, 15)
"""Moments at which a group dies, in each run: 20 in all. Many in one run also come while others recover."""
STEPS, EVERY, LIMIT_S = 1200, 40, 400.0
CLUSTER = [
    "cluster=local",
    "cluster.data_loaders=2",
    "cluster.embedding_workers=2",
    "cluster.embedding_servers=2",
    f"checkpoint.every_steps={EVERY}",
    "train.log_every_steps=5",
    "recovery.max_restarts=100",
    "recovery.window_s=5",  # each death of a role soon counts as its first, so that little time is spent in waiting
]
SIZE = [f"dataset.generator.train_rows={32 * STEPS}"]

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1800)]


def run_and_kill(words: list[str], run_dir: Path, names: tuple[str, ...], deaths: int) -> Launched:
    """Run a job to its good end, and kill some of its processes at random steps after its first checkpoint."""
    draw = random.Random(f"{names} {deaths}")

    with Launched(words, run_dir) as job:
        steps = sorted(draw.sample(range(EVERY, STEPS * 4 // 5), deaths))
        moments = sum(1 for _ in takewhile(lambda step: kill_all(job, names, step), steps))
        assert moments >= (LEAST if NOT_WAITED_FOR.issuperset(names) else deaths), job.output[-3000:]
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
        recovered = events_of(job, "recovered")
        # A loader may be killed again while it starts, and be needed no more when it is there: then none has recovered.
        noticed = {event["replica"] for event in [*events_of(job, "died"), *recovered]}
        assert noticed & set(names), "one took the job back with it, or each was replaced"
        return job


def kill_all(job: Launched, names: tuple[str, ...], step: int) -> bool:
    """Kill processes once a step is done that comes after the last death; returns False if the job is over before."""
    since = time.time()

    def is_due() -> bool:
        lines = read_journal(job.run_dir / METRICS)
        goes_on = bool(lines and lines[-1]["step"] >= step and lines[-1]["time"] > since)
        return goes_on and replicas_of(job.process.pid).keys() >= set(names) and bool(finished(job.run_dir))

    poll_for(lambda: job.process.poll() is not None or is_due(), LIMIT_S, f"step {step}")
    if job.process.poll() is not None:
        return False
    replicas = replicas_of(job.process.pid)
    for name in names:
        replicas[name].send(signal.SIGKILL)
    return True


def finished(run_dir: Path) -> list[int]:
    return finished_steps(run_dir / CHECKPOINTS)


def dense_of(run_dir: Path) -> dict[str, bytes]:
    """The files of dense weights in the last checkpoint."""
    folder = run_dir / CHECKPOINTS / f"step-{finished_steps(run_dir / CHECKPOINTS)[-1]}" / "dense"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train(
        [*WORDS, *SIZE, "train.log_every_steps=5", "cluster=embedded"], tmp_path_factory.mktemp("undisturbed") / "run"
    )


@pytest.mark.parametrize("names", GROUPS, ids="+".join)
@pytest.mark.parametrize("deaths", DEATHS)
def test_in_sync_mode_the_result_has_the_same_bits(
    undisturbed: JobResult, tmp_path: Path, names: tuple[str, ...], deaths: int
) -> None:
    job = run_and_kill([*WORDS, *SIZE, *CLUSTER], tmp_path / "run", names, deaths)
    result = result_of(job.run_dir)
    assert losses(result) == losses(undisturbed)
    assert rows_of(job.run_dir) == rows_of(undisturbed.run_dir)
    assert dense_of(job.run_dir) == dense_of(undisturbed.run_dir) != {}


@pytest.mark.parametrize("names", GROUPS, ids="+".join)
@pytest.mark.parametrize("deaths", DEATHS)
def test_in_hybrid_mode_every_update_is_in_the_model_once(tmp_path: Path, names: tuple[str, ...], deaths: int) -> None:
    words = [*counting(tmp_path), *SIZE, *CLUSTER, f"cluster.nn_workers={RANKS}"]
    job = run_and_kill(words, tmp_path / "run", names, deaths)
    assert missed_by_rows(job.run_dir / CHECKPOINTS, STEPS) == {"embedding-server-0": {0}, "embedding-server-1": {0}}

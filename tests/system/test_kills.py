"""Processes of one role, or of two at once, are killed at any moment of a job with default settings.

The job ends well by itself, with and without a checkpoint to go back to. In sync mode the model and the metrics have
the bits of an undisturbed run. In hybrid mode a network counts, row by row, how many updates are in the model.
"""

import random
import signal
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps
from tests.conftest import poll_for
from tests.support.counting import RANKS, counting, missed_by_rows
from tests.support.launched import Launched
from tests.support.replicas import replicas_of
from tests.support.small import WORDS
from tests.system.test_recovery import events_of, rows_of

ROLES = ("data-loader-1", "embedding-worker-0", "embedding-server-1", "nn-worker-0", "coordinator-0")
SINGLES = [(role,) for role in ROLES]
GROUPS = [*SINGLES, *combinations(ROLES, 2)]
STEPS, EVERY, LIMIT_S = 600, 40, 400.0
CLUSTER = [
    "cluster=local",
    "cluster.data_loaders=2",
    "cluster.embedding_workers=2",
    "cluster.embedding_servers=2",
    "train.log_every_steps=5",
]
SIZE = [f"dataset.generator.train_rows={32 * STEPS}"]
SAVES = [f"checkpoint.every_steps={EVERY}"]
MANY = ["recovery.max_restarts=100", "recovery.window_s=5"]  # each death soon counts as the first, without a pause
CUMULATIVE = ("split", "step", "samples", "auc", "log_loss", "accuracy", "calibration", "hit_rate")
"""Metrics of all samples since the first step."""

pytestmark = pytest.mark.timeout(1800)


def run_and_kill(words: list[str], run_dir: Path, names: tuple[str, ...], deaths: int) -> Launched:
    """Run a job to its good end, and kill some of its processes at random steps."""
    draw = random.Random(f"{names} {deaths}")
    with Launched([*words, *CLUSTER, *SIZE], run_dir) as job:
        killed = sum(kill_all(job, names, step) for step in sorted(draw.sample(range(5, STEPS * 3 // 4), deaths)))
        assert killed, job.output[-3000:]
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
        # A loader that is killed again while it starts may be needed no more.
        noticed = {event["replica"] for event in [*events_of(job, "died"), *events_of(job, "recovered")]}
        assert noticed & set(names), "a process was replaced, or the job went back"
        return job


def kill_all(job: Launched, names: tuple[str, ...], step: int) -> bool:
    """Kill processes once a step is done that comes after the last death; return False if the job is over before."""
    since = time.time()

    def is_due() -> bool:
        lines = read_journal(job.run_dir / METRICS)
        goes_on = bool(lines and lines[-1]["step"] >= step and lines[-1]["time"] > since)
        return goes_on and replicas_of(job.process.pid).keys() >= set(names)

    poll_for(lambda: job.process.poll() is not None or is_due(), LIMIT_S, f"step {step}")
    if job.process.poll() is not None:
        return False
    replicas = replicas_of(job.process.pid)
    for name in names:
        replicas[name].send(signal.SIGKILL)
    return True


def dense_of(run_dir: Path) -> dict[str, bytes]:
    """The files of dense weights in the last checkpoint."""
    folder = run_dir / CHECKPOINTS / f"step-{finished_steps(run_dir / CHECKPOINTS)[-1]}" / "dense"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(trained: Callable[..., JobResult]) -> JobResult:
    return trained(*WORDS, *SIZE, "train.log_every_steps=5", "cluster=embedded")


def metrics_of(result: JobResult) -> list[dict[str, object]]:
    """The lines of metrics without what depends on the clock."""
    return [{key: line[key] for key in line.keys() - {"time", "samples_per_s"}} for line in result.metrics]


def assert_same_bits(job: Launched, undisturbed: JobResult) -> None:
    lines, expected = metrics_of(result_of(job.run_dir)), metrics_of(undisturbed)
    if events_of(job, "save_failed"):
        # Its repetition ends a line of metrics at another step. What counts from the first step on stays comparable.
        steps = {line["step"] for line in expected}
        lines, expected = (
            [[line[key] for key in CUMULATIVE] for line in own if line["step"] in steps] for own in (lines, expected)
        )
    assert lines == expected
    assert rows_of(job.run_dir) == rows_of(undisturbed.run_dir)
    assert dense_of(job.run_dir) == dense_of(undisturbed.run_dir) != {}


def test_a_killed_process_changes_no_bit(undisturbed: JobResult, tmp_path: Path) -> None:
    """One process of each role is killed in a job, one after the other."""
    with Launched([*WORDS, *CLUSTER, *SIZE, *MANY, *SAVES], tmp_path / "run") as job:
        for number, role in enumerate(ROLES):
            assert kill_all(job, (role,), 50 + 100 * number), job.output[-3000:]
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
    assert [event["replica"] for event in events_of(job, "recovered")] == ["coordinator-0"], "the last death"
    assert_same_bits(job, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("names", GROUPS, ids="+".join)
@pytest.mark.parametrize("saves", [True, False], ids=["saves", "unsaved"])
def test_in_sync_mode_many_kills_change_no_bit(
    undisturbed: JobResult, tmp_path: Path, names: tuple[str, ...], saves: bool
) -> None:
    words = [*WORDS, *MANY, *(SAVES if saves else [])]
    assert_same_bits(run_and_kill(words, tmp_path / "run", names, 5), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("names", GROUPS, ids="+".join)
@pytest.mark.parametrize("saves", [True, False], ids=["saves", "unsaved"])
def test_in_hybrid_mode_every_update_is_in_the_model_once(tmp_path: Path, names: tuple[str, ...], saves: bool) -> None:
    every = SAVES if saves else ["checkpoint.every_steps=null"]
    words = [*counting(tmp_path), *MANY, *every, f"cluster.nn_workers={RANKS}"]
    job = run_and_kill(words, tmp_path / "run", names, 5)
    assert missed_by_rows(job.run_dir / CHECKPOINTS, STEPS) == {"embedding-server-0": {0}, "embedding-server-1": {0}}

"""Replicas of two roles are killed at once: the job goes on by itself, and in sync mode no bit differs."""

import os
import random
import signal
from itertools import combinations
from pathlib import Path

import pytest

from persia_cli.launch.job import JobResult
from tests.conftest import poll_for
from tests.support.jobs import losses, train
from tests.support.launched import Launched
from tests.support.small import STEPS, WORDS, replicas
from tests.system.test_recovery import assert_same, recovered
from tests.system.test_takeover import coordinator_of, last_step

ROLES = {"coordinator": 1, "data-loader": 2, "embedding-worker": 2, "embedding-server": 2, "nn-worker": 2}
"""Roles, and how many replicas each has."""
PAIRS = list(combinations(ROLES, 2))
LONG = 2 * STEPS
SMALL = [
    *WORDS,
    "cluster=local",
    *(f"cluster.{role.replace('-', '_')}s={count}" for role, count in ROLES.items() if count > 1),
    f"dataset.generator.train_rows={32 * LONG}",
    "dataset.generator.cardinalities=[20, 20_000]",
    "train.log_every_steps=5",
    "embedding.admission={min_count: 2}",
    "embedding.capacity=100_000",
    "recovery.dense_memory=every_step",
]
HYBRID = ["mode=hybrid", "mode.staleness=4"]
LIMIT_S = 240.0

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """The job without a death; ids get their rows all the way, some at once by both ranks."""
    return train(SMALL, tmp_path_factory.mktemp("undisturbed") / "run")


def train_and_kill(words: list[str], run_dir: Path, roles: tuple[str, str], rng: random.Random) -> JobResult:
    """Run a job, and kill one replica of both roles at a step by chance; return its result once it has ended well."""
    step, names = rng.randrange(5, LONG // 2), [f"{role}-{rng.randrange(ROLES[role])}" for role in roles]
    with Launched(words, run_dir) as job:
        poll_for(lambda: job.process.poll() is not None or last_step(run_dir) >= step, LIMIT_S, f"step {step}")
        pids = job.pids() | {"coordinator-0": coordinator_of(run_dir)}
        for name in names:
            os.kill(pids[name], signal.SIGKILL)
        return recovered(job, names, LIMIT_S)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("roles", PAIRS, ids="+".join)
def test_a_sync_run_has_the_same_bits(
    undisturbed: JobResult, tmp_path: Path, roles: tuple[str, str], seed: int
) -> None:
    result = train_and_kill(SMALL, tmp_path / "run", roles, random.Random(f"{roles} {seed}"))
    assert_same(result, undisturbed, ranks=2)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("roles", PAIRS, ids="+".join)
def test_in_hybrid_mode_every_server_applies_every_update_once(
    tmp_path: Path, roles: tuple[str, str], seed: int
) -> None:
    result = train_and_kill([*SMALL, *HYBRID], tmp_path / "run", roles, random.Random(f"hybrid {roles} {seed}"))
    servers = replicas(result, "embedding-server")
    # Counted in the memory that the processes hand on; the first entry of each replaced server has no such count.
    applied = [entry["updates"]["applied"] for entry in servers if "applied" in entry["updates"]]
    assert applied == [2 * LONG, 2 * LONG]
    assert len(losses(result)) == LONG // 5

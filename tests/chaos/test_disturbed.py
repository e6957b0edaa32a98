"""Faults without a process death: training goes on, and in sync mode ends with the bits of an undisturbed run."""

from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.observe.journal import METRICS, read_journal
from tests.chaos.disturb import disturb
from tests.conftest import poll_for
from tests.support.jobs import losses, train
from tests.support.launched import Launched
from tests.support.small import WORDS
from tests.system.test_recovery import rows_of

STEPS, LIMIT_S = 600, 300.0
JOB = [*WORDS, f"dataset.generator.train_rows={32 * STEPS}"]
TCP = "cluster.transport=tcp"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train([*JOB, "cluster=embedded"], tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.parametrize(
    "words",
    [
        ["stop", "embedding-server-0"],
        ["slow", "nn-worker-0"],
        ["cut", "embedding-worker-0", "embedding-server-0"],
        ["cut", "embedding-worker-0", "nn-worker-0", TCP],
        ["fill-disk"],
    ],
    ids=" ".join,
)
def test_a_sync_run_has_the_same_bits(undisturbed: JobResult, tmp_path: Path, words: list[str]) -> None:
    kind, *names = [word for word in words if "=" not in word]
    with Launched([*JOB, "cluster=local", *(word for word in words if "=" in word)], tmp_path / "run") as job:
        poll_for(lambda: reached(job) >= 100 or job.process.poll() is not None, LIMIT_S, "step 100")
        disturb(job, kind, names)
        assert reached(job) < STEPS, "the job was over before the fault was"
        assert job.end(within_s=LIMIT_S)[0] == 0, job.output[-3000:]
    assert losses(result_of(job.run_dir)) == losses(undisturbed)
    assert rows_of(job.run_dir) == rows_of(undisturbed.run_dir)


def reached(job: Launched) -> int:
    return max((int(line["step"]) for line in read_journal(job.run_dir / METRICS)), default=0)

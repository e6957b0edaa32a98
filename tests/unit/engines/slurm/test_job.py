"""A job in its allocation, with programs that stand for Slurm's."""

from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines.slurm.allocation import Allocation
from persia_cli.engines.slurm.job import AllocatedJob
from persia_cli.errors import RoleError
from persia_cli.wire.secret import new_keys
from tests.conftest import poll_for
from tests.support.made_up_slurm import put

LIMIT_S = 20.0
SRUN = """\
case "$*" in
*--job-name=coordinator-0*) echo listening at tcp://127.0.0.1:7; exec sleep 60 ;;
*--job-name=embedding-worker-1*) read -r key; echo "srun: error: Node failure on n2" >&2; exit 1 ;;
*) exec sleep 60 ;;
esac
"""


@pytest.mark.processes
def test_a_replica_that_is_lost_with_its_machine_fails_the_start_and_gets_no_other_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch, srun=SRUN)
    words = ["cluster.embedding_servers=2", "cluster.embedding_workers=2", "cluster.stop_timeout_s=1"]
    run = compose_run(["conf=synthetic", "cluster=slurm", *words])
    said: list[str] = []
    job = AllocatedJob(run, tmp_path, Allocation("17", (("n1", "n2"),)), new_keys(), said.append)
    try:
        job.start()
        put(tmp_path / "bin", monkeypatch, srun=SRUN, sinfo="echo 'n2 down*'")
        with pytest.raises(RoleError, match=r"^embedding-worker-1: its machine n2 is lost$"):
            poll_for(lambda: job.poll() is not None, LIMIT_S, "the failure of the start")
        assert job.running
    finally:
        job.stop()

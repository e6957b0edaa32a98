"""A job in its allocation, with programs that stand for Slurm's."""

import re
from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines.slurm.allocation import Allocation
from persia_cli.engines.slurm.job import AllocatedJob
from persia_cli.errors import RoleError
from persia_cli.plan.job import ROLES
from persia_cli.wire.keys import new_keys
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


NAMES_FILES = """\
echo "$*" | grep -o '/tmp/persia-.*' >> "$0.files"
case "$*" in
*--job-name=coordinator-0*) echo listening at tcp://127.0.0.1:7; exec sleep 60 ;;
*) trap 'echo told >> "$0.files"; exit 1' ALRM; echo here; sleep 60 & wait ;;
esac
"""
"""An srun that writes down which files its steps are to have on their machines, and that they were told to end."""


@pytest.mark.processes
def test_names_of_files_on_machines_cannot_be_guessed_and_supervisors_are_told_to_remove_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", monkeypatch, srun=NAMES_FILES)
    run = compose_run(["conf=synthetic", "cluster=slurm", "cluster.stop_timeout_s=1"])
    for start in range(2):
        job = AllocatedJob(run, tmp_path / str(start), Allocation("17", (("n1",),)), new_keys(), lambda text: None)
        try:
            job.start()
            logs = (tmp_path / str(start) / "roles").glob("*.log")
            poll_for(lambda logs=list(logs): all(log.read_text() for log in logs), LIMIT_S, "all steps")
        finally:
            job.stop()
    lines = (tmp_path / "bin/srun.files").read_text().splitlines()
    assert lines.count("told") == 8
    names = [re.fullmatch(r"/tmp/persia-17-([0-9a-f]{16})-([a-z]+-[a-z]+)-0", line) for line in lines if line[0] == "/"]
    assert len({found[1] for found in names if found}) == 2  # one for each start
    assert sorted(found[2] for found in names if found) == sorted(2 * [*ROLES[1:]])


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

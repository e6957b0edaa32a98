"""The machines of a job, as its environment and Slurm tell of them."""

from pathlib import Path

import pytest

from persia_cli.engines.slurm.allocation import Allocation, allocation_of
from persia_cli.engines.slurm.machines import MachinePlace
from persia_cli.errors import UserError
from tests.support.made_up_slurm import put

HETEROGENEOUS = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n1,n2",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1,n2",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "g1",
}


def test_it_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "bin", monkeypatch)
    assert allocation_of(HETEROGENEOUS) == Allocation("17", (("n1", "n2"), ("g1",)))
    assert allocation_of({"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n1"}) == Allocation("17", (("n1",),))


def test_a_replica_is_on_its_machine() -> None:
    job = Allocation("17", (("n1", "n2", "n3"), ("g1",)))
    assert [job.node_of(MachinePlace(0, node)) for node in range(4)] == ["n1", "n2", "n3", "n1"]
    assert (job.group_of(MachinePlace(1, 0)), job.node_of(MachinePlace(1, 0))) == (1, "g1")


def test_while_slurm_does_not_answer_no_machine_is_known_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, said = Allocation("17", (("n1", "n2"),)), list[str]()
    put(tmp_path / "bin", monkeypatch, sinfo="echo 'n2 down'")
    assert (job.lost(said.append), said) == (frozenset({"n2"}), [])
    put(tmp_path / "bin", monkeypatch, sinfo="echo 'Unable to contact slurm controller' >&2; exit 1")
    assert job.lost(said.append) == frozenset()
    assert said == ["Slurm does not tell which machines are lost: sinfo: Unable to contact slurm controller"]


def test_an_environment_with_half_of_an_allocation_is_refused() -> None:
    with pytest.raises(UserError, match="SLURM_JOB_NODELIST_HET_GROUP_0 is not"):
        allocation_of({"SLURM_JOB_ID": "17", "SLURM_HET_SIZE": "1"})

"""`cluster=auto`: as many replicas as suit the machine."""

from pathlib import Path

import pytest

from persia_cli.config import replicas
from persia_cli.config.compose import compose_run

ROLES = ("data_loaders", "embedding_workers", "embedding_servers", "nn_workers")


@pytest.mark.parametrize(
    ("cores", "has_gpu", "expected"),
    [(2, False, [1, 1, 1, 1]), (64, False, [1, 1, 1, 1]), (2, True, [1, 1, 1, 1]), (16, True, [2, 3, 4, 1])],
)
def test_replicas_suit_the_machine(cores: int, has_gpu: bool, expected: list[int]) -> None:
    assert [replicas.replicas_for(role, cores, has_gpu) for role in ROLES] == expected


def test_the_configuration_has_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a GPU machine; those that the user gives, and one of each where the network is on the CPU all the same."""
    gpu = tmp_path / "nvidia0"
    gpu.touch()
    monkeypatch.setattr(replicas, "GPU", gpu)
    monkeypatch.setattr(replicas, "processors", lambda: 16)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def counts(*words: str) -> list[int]:
        cluster = compose_run(["conf=synthetic", "cluster=auto", *words]).cluster
        return [getattr(cluster, role) for role in ROLES]

    assert counts("cluster.data_loaders=1", "cluster.nn_workers=2") == [1, 3, 4, 2]
    assert counts("train.device=cpu") == counts("mode=async") == [1, 1, 1, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert counts() == [1, 1, 1, 1]
    assert counts("train.device=cuda:1") == [2, 3, 4, 1]

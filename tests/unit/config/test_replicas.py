"""`cluster=auto`: as many replicas as suit the machine."""

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


def test_the_configuration_has_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_of_this_machine", lambda role: {"embedding_servers": 4}.get(role, 2))
    cluster = compose_run(["conf=synthetic", "cluster=auto", "cluster.data_loaders=1"]).cluster
    assert [getattr(cluster, role) for role in ROLES] == [1, 2, 4, 1]

"""A sentence refuses what cluster=ray cannot do, before anything starts."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from persia_cli.commands.train import train
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import inspect
from persia_cli.engines.ray.cluster import machines
from persia_cli.errors import ConfigError
from persia_cli.plan.job import JobPlan, plan_job

RAY = ["conf=synthetic", "cluster=ray"]


def planned(run: Run) -> JobPlan:
    return plan_job(run, inspect(run.dataset), "train", Path("run"))


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without_ray(name: str, package: str | None = None) -> Any:
        return None if name == "ray" else found(name, package)

    monkeypatch.setattr("persia_cli.engines.ray.cluster.find_spec", without_ray)
    with pytest.raises(ConfigError) as refused, machines(planned(compose_run(RAY))):
        pass
    assert str(refused.value) == "cluster=ray needs Ray, which is not installed: pip install 'persia-cli[ray]'"


def test_a_client_outside_of_the_cluster_is_refused() -> None:
    pytest.importorskip("ray", reason="Ray is not installed (persia-cli[ray])")
    outside = compose_run([*RAY, "cluster.address='ray://10.0.0.1:10001'"])
    with pytest.raises(ConfigError) as refused, machines(planned(outside)):
        pass
    assert "a Ray Client is outside of the cluster; give HOST:PORT on one of its machines" in str(refused.value)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:9", "no Ray cluster is reached there: Connection refused"),
        ("head", "expected HOST:PORT, such as 10.0.0.1:6379"),
    ],
)
def test_a_wrong_address_is_named_at_once_and_leaves_no_folder(
    address: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (persia-cli[ray])")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        train([*RAY, "checkpoint.at_end=false", f"cluster.address='{address}'"])
    assert str(refused.value) == f"cluster.address={address}: {sentence}"
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]

"""Resources that a job requests of Ray, and what Ray cannot do."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from persia_cli.commands.train import train
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import inspect
from persia_cli.engines.placement import GIB, resources_of
from persia_cli.engines.ray.engine import RayEngine, request_of, why_no_room
from persia_cli.errors import ConfigError
from persia_cli.plan.job import JobPlan, all_replicas, plan_job

GOLDEN = Path(__file__).with_name("shop.yaml")
SHOP = [
    "conf=synthetic",
    "cluster=ray",
    "cluster.embedding_servers=2",
    "cluster.embedding_workers=3",
    "cluster.data_loaders=2",
    "cluster.nn_workers=2",
    "cluster.resources.nn_worker.cpus=8",
    "train.device=cuda",
    "embedding.memory=64GiB",
    "cluster.address=10.0.0.1:6379",
    "cluster.pin={nn_worker: [0-7, 8-15]}",
]


def test_a_job_asks_for_what_was_last_looked_at() -> None:
    """To renew the file: write what is compared into it, and look at what has changed."""
    assert RayEngine().rendered(compose_run(SHOP), None) + "\n" == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("counts", [(1, 1, 1, 1), (2, 5, 3, 4), (5, 2, 1, 2)])
def test_each_replica_but_the_coordinator_fits_into_one_bundle(counts: tuple[int, int, int, int]) -> None:
    roles = ("embedding_servers", "embedding_workers", "data_loaders", "nn_workers")
    asked = [f"cluster.{role}={count}" for role, count in zip(roles, counts, strict=True)]
    run = compose_run(["conf=synthetic", "cluster=ray", *asked])
    request = request_of(run)
    first, *others = all_replicas(run)
    placed = [replica for bundle in request.bundles for replica in bundle.replicas]
    assert sorted(placed, key=others.index) == others
    assert first not in request.amounts
    for bundle in request.bundles:
        assert bundle.owner in bundle.replicas
        needed = [resources_of(run, replica.role) for replica in bundle.replicas]
        assert bundle.amounts["CPU"] == sum(each.cpus for each in needed)
        assert bundle.amounts["memory"] == sum(each.memory for each in needed)
    assert len(request.bundles) == counts[0] + counts[3]


def bundles(placement: str) -> list[list[str]]:
    request = request_of(compose_run([*SHOP, f"cluster.placement={placement}"]))
    return [[replica.name for replica in bundle.replicas] for bundle in request.bundles]


def test_embedding_workers_may_be_next_to_ranks() -> None:
    assert bundles("beside_ranks") == [
        ["embedding-server-0"],
        ["embedding-server-1"],
        ["embedding-worker-0", "embedding-worker-2", "data-loader-0", "nn-worker-0"],
        ["embedding-worker-1", "data-loader-1", "nn-worker-1"],
    ]


def test_packed_replicas_are_one_bundle() -> None:
    [names] = bundles("packed")
    assert len(names) == 2 + 3 + 2 + 2
    [bundle] = request_of(compose_run([*SHOP, "cluster.placement=packed"])).bundles
    assert (bundle.owner.name, bundle.amounts["GPU"]) == ("nn-worker-0", 2)


@pytest.mark.parametrize(
    ("machines", "free", "sentence"),
    [
        (
            [{"CPU": 16, "memory": 256 * GIB}],
            {},
            "no machine is large enough for data-loader-0, nn-worker-0, which need 10 CPUs, 1 GPUs, 6.0 GiB together; "
            "the largest of 1 has 16 CPUs, 256.0 GiB",
        ),
        ([], {}, "no machine is large enough for embedding-server-0, embedding-worker-0, embedding-worker-2, which"),
        (
            [{"CPU": 16, "memory": 256 * GIB, "GPU": 4}] * 2,
            {"CPU": 20, "memory": 100 * GIB, "GPU": 4},
            "the job needs 27 CPUs, 2 GPUs, 87.2 GiB in 4 bundles, and of 2 machines 20 CPUs, 4 GPUs, 100.0 GiB are fr",
        ),
    ],
)
def test_missing_resources_of_a_cluster_are_reported(
    machines: list[dict[str, float]], free: dict[str, float], sentence: str
) -> None:
    assert sentence in why_no_room(request_of(compose_run(SHOP)), machines, free)


RAY = ["conf=synthetic", "cluster=ray"]


def planned(run: Run) -> JobPlan:
    return plan_job(run, inspect(run.dataset), "train", Path("run"))


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without_ray(name: str, package: str | None = None) -> Any:
        return None if name == "ray" else found(name, package)

    monkeypatch.setattr("persia_cli.engines.engine.find_spec", without_ray)
    with pytest.raises(ConfigError) as refused, RayEngine().machines(planned(compose_run(RAY))):
        pass
    assert str(refused.value) == "cluster=ray needs Ray, which is not installed: pip install 'persia-cli[ray]'"


def test_a_client_outside_of_the_cluster_is_refused() -> None:
    pytest.importorskip("ray", reason="Ray is not installed (persia-cli[ray])")
    outside = compose_run([*RAY, "cluster.address='ray://10.0.0.1:10001'"])
    with pytest.raises(ConfigError) as refused, RayEngine().machines(planned(outside)):
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

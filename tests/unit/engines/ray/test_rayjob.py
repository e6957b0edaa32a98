"""The manifests of a job for KubeRay: as they were last looked at by a person, and as Kubernetes takes them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from persia_cli import __version__
from persia_cli.config.compose import compose_run
from persia_cli.config.record import parsed
from persia_cli.config.schema import RayPods, Run
from persia_cli.engines.configuration import configuration
from persia_cli.engines.ray.rayjob import OBJECT_STORE, OVERHEAD, rayjob_manifests, rayjob_yaml
from persia_cli.engines.ray.request import request_of
from persia_cli.errors import ConfigError
from tests.support.cluster_schemas import NEWEST, mistakes

GOLDEN = Path(__file__).with_name("rayjob.yaml")
SHOP = [
    "conf=synthetic",
    "cluster=ray",
    "cluster.embedding_servers=3",
    "cluster.embedding_workers=3",
    "cluster.data_loaders=3",
    "cluster.nn_workers=2",
    "train.device=cuda",
    "embedding.memory=96GiB",
    "checkpoint.path=s3://models/shop",
    "cluster.ray.pods.image=registry.example.com/persia:0.1.0",
    "cluster.ray.pods.namespace=training",
    "cluster.ray.pods.run_claim=runs",
    "cluster.ray.pods.environment_secrets=[storage]",
    "cluster.ray.pods.service_account=trainer",
    "cluster.ray.pods.volumes=[{claim: rows, path: /data}]",
    "cluster.ray.pods.node_selector={pool: training}",
]


def pods_of(run: Run) -> RayPods:
    assert run.cluster.ray is not None
    assert run.cluster.ray.pods is not None
    return run.cluster.ray.pods


def made(words: list[str], name: str = "shop") -> list[dict[str, Any]]:
    run = compose_run(words)
    return rayjob_manifests(run, pods_of(run), name)


def templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_a_job_is_rendered_as_it_was_last_looked_at() -> None:
    """To renew the file: write what is compared into it, and look at what has changed."""
    run = compose_run(SHOP)
    head, documents = rayjob_yaml(run, pods_of(run), "shop").split("---\n", 1)
    found = list(yaml.safe_load_all(documents))
    assert parsed(found[0]["data"]["config.yaml"], "it") == parsed(configuration(run), "it")
    found[0]["data"]["config.yaml"] = "…"
    text = yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, width=120)
    assert f"{head.replace(__version__, 'VERSION')}---\n{text}" == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("version", NEWEST)
def test_kubernetes_takes_what_kuberay_makes_of_it(version: str) -> None:
    config, policy, job = made(SHOP)
    assert mistakes(config, version) == mistakes(policy, version) == []
    for template in templates(job):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **template["metadata"]}}
        assert mistakes({**pod, "spec": template["spec"]}, version) == []


def test_the_pods_have_room_for_all_bundles_of_the_request() -> None:
    run = compose_run(SHOP)
    *_, job = made(SHOP)
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    room = {group["groupName"]: group for group in groups}
    bundles = request_of(run).bundles
    assert sum(group["replicas"] for group in groups) == len(bundles)
    for bundle in bundles:
        group = room[bundle.owner.role]
        assert int(group["rayStartParams"]["num-cpus"]) >= bundle.amounts["CPU"]
        assert int(group["rayStartParams"]["memory"]) >= bundle.amounts["memory"]
        [container] = group["template"]["spec"]["containers"]
        asked = int(container["resources"]["limits"]["memory"].removesuffix("Mi")) * 2**20
        assert asked >= int(group["rayStartParams"]["memory"]) + OBJECT_STORE + OVERHEAD


@pytest.mark.parametrize(
    ("words", "name", "sentence"),
    [
        ([], "Shop", "name=Shop: KubeRay has at most 47 lower-case letters, digits and hyphens, a letter first; set"),
        ([], "s" * 48, f"set name={'s' * 47}"),
        (["checkpoint.path=checkpoints"], "shop", "or an absolute path in one of cluster.ray.pods.volumes or in the"),
        (["checkpoint.path=/data/saved"], "shop", "or in one of cluster.ray.pods.volumes with read_only: false"),
        (["checkpoint.path=file:///saved"], "shop", "checkpoint.path has to be a URI that all pods reach, such as s3:"),
        (["cluster.ray.pods.volumes=[{claim: a, path: /run/persia/runs}]"], "shop", "/run/persia/runs pods have for"),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_here(words: list[str], name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        made([*SHOP, *words], name)
    assert sentence in str(refused.value)

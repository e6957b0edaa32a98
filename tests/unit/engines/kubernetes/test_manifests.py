"""Manifests of a job: unchanged since a person checked them, valid for Kubernetes and JobSet, and for any job."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.config.compose import compose_run
from persia_cli.config.record import parsed
from persia_cli.config.schema import Run
from persia_cli.engines.driver_input import configuration
from persia_cli.engines.kubernetes.engine import as_yaml, manifests
from persia_cli.version import __version__
from tests.support.cluster_schemas import NEWEST, mistakes, needs_crd

GOLDEN = Path(__file__).with_name("shop.yaml")
COUNTS = {"data_loaders": 2, "embedding_workers": 2, "embedding_servers": 4, "nn_workers": 2}
SHOP = [
    "conf=synthetic",
    "cluster=kubernetes",
    *(f"cluster.{role}={count}" for role, count in COUNTS.items()),
    "train.device=cuda",
    "checkpoint.path=s3://models/shop",
    "checkpoint.grace_s=90.5",
    "embedding.memory=256GiB",
    "cluster.resources.nn_worker.cpus=8",
    "cluster.image=registry.example.com/persia:0.1.0",
    "cluster.run_claim=runs",
    "cluster.environment_secrets=[storage]",
    "cluster.pod.spec={serviceAccountName: trainer, imagePullSecrets: [{name: registry}]}",
    "cluster.pod.spec.nodeSelector={pool: training}",
    "cluster.pod.spec.tolerations=[{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]",
    "cluster.volumes=[{claim: rows, path: /data}]",
    "cluster.labels={kueue.x-k8s.io/queue-name: training}",
    "cluster.pod.metadata.annotations={example.com/team: ranking}",
]
PLAIN = [
    "conf=synthetic",
    "cluster=kubernetes",
    "cluster.image=persia",
    "checkpoint={at_end: false, every_minutes: null}",
]


@cache
def shop() -> Run:
    return compose_run(SHOP)


@cache
def plain() -> Run:
    return compose_run(PLAIN)


def jobset_of(made: list[dict[str, Any]]) -> dict[str, Any]:
    [found] = [manifest for manifest in made if manifest["kind"] == "JobSet"]
    return found


def pods_of(jobset: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The template of the pods of each role."""
    return {job["name"]: job["template"]["spec"]["template"] for job in jobset["spec"]["replicatedJobs"]}


def difference(value: Any, other: Any) -> Any:
    """The keys and entries in which a value differs from another, with its own values; None for what it lacks."""
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        value, other = dict(enumerate(value)), dict(enumerate(other))
    if not isinstance(value, dict) or not isinstance(other, dict):
        return value
    keys = [key for key in [*value, *(other.keys() - value.keys())] if value.get(key) != other.get(key)]
    return {key: difference(value.get(key), other.get(key)) for key in sorted(keys, key=str)}


def shortened(text: str) -> str:
    """The manifests without the configuration, which has keys of all of Persia; of roles after the second how they
    differ from that.
    """
    head, documents = text.split("---\n", 1)
    made = list(yaml.safe_load_all(documents))
    made[0]["data"]["config.yaml"] = "…"
    spec = jobset_of(made)["spec"]
    _, server, *others = jobs = spec["replicatedJobs"]
    spec["replicatedJobs"] = [*jobs[:2], *(difference(job, server) for job in others)]
    text = yaml.safe_dump_all(made, sort_keys=False, allow_unicode=True, width=120)
    return f"{head.replace(__version__, 'VERSION')}---\n{text}"


def test_a_job_is_rendered_as_last_checked() -> None:
    """To renew the file: write what is compared into it, and look at what has changed."""
    assert shortened(as_yaml(shop(), "shop")) == GOLDEN.read_text(encoding="utf-8")


def test_the_text_has_the_manifests(tmp_path: Path) -> None:
    text = as_yaml(shop(), "shop")
    made = list(yaml.safe_load_all(text))
    assert made == manifests(shop(), "shop")
    assert parsed(made[0]["data"]["config.yaml"], "the map") == shop()
    assert made[0]["data"]["config.yaml"] == configuration(shop())
    assert "&id" not in text  # a reference of YAML


def affinities(placement: str) -> dict[str, Any]:
    """Pods of each role prefer the machines of other pods."""
    run = compose_run([*SHOP, f"cluster.placement={placement}"])
    pods = pods_of(jobset_of(manifests(run, "shop")))
    return {role: pod["spec"]["affinity"]["podAffinity"] for role, pod in pods.items() if "affinity" in pod["spec"]}


def test_pods_may_prefer_the_machines_of_ranks() -> None:
    for role, affinity in affinities("beside_ranks").items():
        [wish] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert role in ("embedding-worker", "data-loader")
        labels = wish["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert labels["app.kubernetes.io/component"] == "nn-worker"


def test_packed_pods_have_to_be_on_one_node() -> None:
    found = affinities("packed")
    assert list(found) == ["coordinator", "embedding-server", "embedding-worker", "data-loader", "nn-worker"]
    for affinity in found.values():
        [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "shop"
        assert "app.kubernetes.io/component" not in term["labelSelector"]["matchLabels"]
    assert "topologySpreadConstraints" not in as_yaml(packed(), "shop")


@cache
def packed() -> Run:
    return compose_run([*SHOP, "cluster.placement=packed"])


@needs_crd
@pytest.mark.parametrize(
    "version", [NEWEST[0], *(pytest.param(each, marks=pytest.mark.slow) for each in NEWEST[1:-1]), NEWEST[-1]]
)
def test_kubernetes_and_jobset_take_it(version: str) -> None:
    for run in (shop(), plain(), packed()):
        assert [mistakes(manifest, version) for manifest in manifests(run, "shop")] == [[], [], []]


def test_no_secret_is_in_it() -> None:
    text = as_yaml(shop(), "shop")
    assert "kind: Secret" not in text
    assert "kubectl create secret generic shop-keys --from-file=keys=shop.keys" in text


def test_every_pod_has_the_least_rights() -> None:
    for role, template in pods_of(jobset_of(manifests(shop(), "shop"))).items():
        spec = template["spec"]
        [container] = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, role
        assert spec["terminationGracePeriodSeconds"] > 90.5
        [keys] = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "keys"]
        assert keys == {"secretName": "shop-keys", "defaultMode": 0o440}


def test_a_job_without_checkpoints_is_not_restarted() -> None:
    forgetful = jobset_of(manifests(plain(), "shop"))["spec"]
    assert forgetful["failurePolicy"]["maxRestarts"] == 0
    [only] = forgetful["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert only["action"] == "FailJob"


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
FEW = st.integers(1, 1024)


@settings(max_examples=20, deadline=None)
@given(name=NAMES, counts=st.tuples(FEW, FEW, FEW, FEW))
def test_any_valid_name_and_any_number_of_replicas_give_a_job(name: str, counts: tuple[int, ...]) -> None:
    run = plain()
    given_counts = dict(zip(COUNTS, counts, strict=True))
    run = run.model_copy(update={"cluster": run.cluster.model_copy(update=given_counts)})
    jobset = jobset_of(manifests(run, name))
    found = {job["name"]: job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]}
    assert {role: job["completions"] for role, job in found.items()} == {
        "coordinator": 1,
        **{key.replace("_", "-").removesuffix("s"): count for key, count in given_counts.items()},
    }
    address = f"tcp://{name}-coordinator-0-0.{name}:7070"
    words = {role: job["template"]["spec"]["containers"][0]["args"] for role, job in found.items()}
    assert all(address in each for role, each in words.items() if role != "coordinator")

"""Manifests of a job: unchanged since a person checked them, valid for Kubernetes and JobSet, and for any job."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli import __version__
from persia_cli.config.compose import compose_run
from persia_cli.config.record import parsed
from persia_cli.config.schema import Run
from persia_cli.engines.configuration import configuration
from persia_cli.engines.kubernetes.manifests import as_yaml, manifests
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


def without_configuration(text: str) -> str:
    """The manifests without the configuration, which has keys of all of Persia."""
    head, documents = text.split("---\n", 1)
    found = list(yaml.safe_load_all(documents))
    found[0]["data"]["config.yaml"] = "…"
    text = yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, width=120)
    return f"{head.replace(__version__, 'VERSION')}---\n{text}"


def test_a_job_is_rendered_as_last_checked() -> None:
    """To renew the file: write what is compared into it, and look at what has changed."""
    assert without_configuration(as_yaml(shop(), "shop")) == GOLDEN.read_text(encoding="utf-8")


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


@pytest.mark.parametrize(
    ("placement", "owners"),
    [
        ("beside_servers", {"embedding-worker": "embedding-server", "data-loader": "nn-worker"}),
        ("beside_ranks", {"embedding-worker": "nn-worker", "data-loader": "nn-worker"}),
    ],
)
def test_a_pod_prefers_the_machine_of_the_one_with_its_index(placement: str, owners: dict[str, str]) -> None:
    found = {}
    for role, affinity in affinities(placement).items():
        [wish] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        term = wish["podAffinityTerm"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["matchLabelKeys"] == ["batch.kubernetes.io/job-completion-index"]
        labels = term["labelSelector"]["matchLabels"]
        assert labels["app.kubernetes.io/instance"] == "shop"
        found[role] = labels["app.kubernetes.io/component"]
    assert found == owners


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
@pytest.mark.parametrize("version", NEWEST)
def test_kubernetes_and_jobset_take_it(version: str) -> None:
    for run in (shop(), plain(), packed()):
        assert [mistakes(manifest, version) for manifest in manifests(run, "shop")] == [[], [], []]


@needs_crd
def test_the_schemas_find_mistakes() -> None:
    good = jobset_of(manifests(shop(), "shop"))

    def found(change: str) -> str:
        bad = copy.deepcopy(good)
        spec, job = bad["spec"], bad["spec"]["replicatedJobs"][1]["template"]["spec"]
        exec(change, {"spec": spec, "job": job, "pod": job["template"]["spec"]})
        return " ".join(mistakes(bad, NEWEST[-1]))

    assert found("") == ""
    assert "restartPolcy" in found("pod['restartPolcy'] = 'Never'")
    assert "'Recreat' is not one of" in found("spec['failurePolicy']['restartStrategy'] = 'Recreat'")
    assert "'2' is not of type 'integer'" in found("job['parallelism'] = '2'")
    assert "readOnlyFilesystem" in found("pod['containers'][0]['securityContext']['readOnlyFilesystem'] = True")


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


def test_ends_mean_what_they_should() -> None:
    spec = jobset_of(manifests(shop(), "shop"))["spec"]
    jobs = {job["name"]: job["template"]["spec"] for job in spec["replicatedJobs"]}
    first = jobs.pop("coordinator")
    assert first["template"]["spec"]["restartPolicy"] == "Never"
    assert [
        (rule["action"], *rule.get("onExitCodes", {}).get("values", [])) for rule in first["podFailurePolicy"]["rules"]
    ] == [("FailJob", 2), ("Ignore", 75), ("Ignore",)]
    assert {job["template"]["spec"]["restartPolicy"] for job in jobs.values()} == {"OnFailure"}
    assert spec["failurePolicy"]["maxRestarts"] == 3
    forgetful = jobset_of(manifests(plain(), "shop"))["spec"]
    assert forgetful["failurePolicy"]["maxRestarts"] == 0
    [only] = forgetful["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert only["action"] == "FailJob"


def test_gpus_are_for_nn_workers_alone() -> None:
    pods = pods_of(jobset_of(manifests(shop(), "shop")))
    limits = {role: pod["spec"]["containers"][0]["resources"]["limits"] for role, pod in pods.items()}
    assert [role for role, limit in limits.items() if "nvidia.com/gpu" in limit] == ["nn-worker"]
    shared = [role for role, pod in pods.items() if "shm" in {volume["name"] for volume in pod["spec"]["volumes"]}]
    assert shared == ["nn-worker"]


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

"""The manifests of a job for KubeRay: a RayJob, whose cluster has a pod for each bundle and ends with the job."""

import math
from collections.abc import Mapping, Sequence

from persia_cli import __version__
from persia_cli.config.schema import RayPods, Run
from persia_cli.engines.kubernetes.manifests import config_map, network_policy
from persia_cli.engines.kubernetes.names import LABEL, proposal
from persia_cli.engines.kubernetes.paths import check_paths
from persia_cli.engines.kubernetes.plain_yaml import plain_yaml
from persia_cli.engines.kubernetes.pod import CONFIG_FILE, CONFIG_FOLDER, RUNS, SPARE_S, Manifest
from persia_cli.engines.ray.request import CPU, GPU, MEMORY, Amounts, Bundle, request_of
from persia_cli.engines.resources import GIB, resources_of
from persia_cli.errors import ConfigError
from persia_cli.plan.job import COORDINATOR

RAY_VERSION = "2.60.0"
"""The one that Persia is tested with."""
MOST_OF_NAME = 47
"""Characters of the name of a RayJob, from which KubeRay makes longer ones."""
OBJECT_STORE = 2**27
"""Bytes of a pod for Ray's objects, of which a job has only small ones."""
OVERHEAD, OF_HEAD = GIB, 3 * GIB
"""Memory of Ray's own processes in each pod, and of those that the head has besides."""
DASHBOARD = 8265
"""Port of the head at which KubeRay submits the job and asks how it does; it demands the token of the cluster."""
KEPT_S = 300
"""Seconds for which the cluster is kept after the job, so that logs can be read."""
GROUP = 1000
"""Group of the volumes' files."""
CONFIG_VOLUME, RUNS_VOLUME = "config", "runs"
HEAD = """\
# The job {name}, made by persia {version}. The cluster needs KubeRay 1.5 or later: https://docs.ray.io
# No secret is in here: the job makes its keys when it starts, and KubeRay the token of the Ray cluster.
"""
FORGETS = """\
# The record of the run goes with the pod of Ray's head, and a job that ends early does not go on; to keep it, set
# cluster.ray.pods.run_claim.
"""


def rayjob_yaml(run: Run, pods: RayPods, name: str) -> str:
    """Return the manifests of a job as YAML."""
    head = HEAD.format(name=name, version=__version__)
    text = plain_yaml(rayjob_manifests(run, pods, name))
    return f"{head}{'' if pods.run_claim else FORGETS}---\n{text}".removesuffix("\n")


def rayjob_manifests(run: Run, pods: RayPods, name: str) -> list[Manifest]:
    """Return the manifests of a job of this name; raises ConfigError for what a cluster would refuse."""
    if not LABEL.fullmatch(name) or len(name) > MOST_OF_NAME:
        raise ConfigError(
            f"name={name}: KubeRay has at most {MOST_OF_NAME} lower-case letters, digits and hyphens, a letter first; "
            f"set name={proposal(name)[:MOST_OF_NAME]}"
        )
    check_paths(run, pods.volumes, "cluster.ray.pods.volumes")
    labels = {"app.kubernetes.io/name": "persia", "app.kubernetes.io/instance": name}

    def metadata(of: str) -> Manifest:
        return {"name": of, **({"namespace": pods.namespace} if pods.namespace else {}), "labels": labels}

    cluster = {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token"},
        "headGroupSpec": _head(run, pods, name, labels),
        "workerGroupSpecs": [_group(run, pods, labels, role, each) for role, each in _kinds(run).items()],
    }
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata(name),
        "spec": {
            # On the head. It goes back to checkpoints by itself.
            "entrypoint": f"persia train conf={CONFIG_FOLDER}/{CONFIG_FILE} resume=auto --run-dir {RUNS}/{name}",
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_S,
            # KubeRay cannot tell a user's mistake (exit code 2) from other ends, and would begin it again.
            "backoffLimit": 0,
            "rayClusterSpec": cluster,
        },
    }
    return [config_map(metadata(f"{name}-config"), run), network_policy(metadata(name), labels, DASHBOARD), job]


def _kinds(run: Run) -> dict[str, list[Bundle]]:
    """Return the bundles by the role that each is for."""
    kinds: dict[str, list[Bundle]] = {}
    for bundle in request_of(run).bundles:
        kinds.setdefault(bundle.owner.role, []).append(bundle)
    return kinds


def _head(run: Run, pods: RayPods, name: str, labels: Mapping[str, str]) -> Manifest:
    needed = resources_of(run, COORDINATOR)
    claim = {"persistentVolumeClaim": {"claimName": pods.run_claim}}
    volumes: list[Manifest] = [
        {"name": CONFIG_VOLUME, "configMap": {"name": f"{name}-config"}},
        {"name": RUNS_VOLUME, **(claim if pods.run_claim else {"emptyDir": {}})},
    ]
    mounts: list[Manifest] = [
        {"name": CONFIG_VOLUME, "mountPath": CONFIG_FOLDER, "readOnly": True},
        {"name": RUNS_VOLUME, "mountPath": RUNS},
    ]
    container = _container(pods, "ray-head", {CPU: needed.cpus + 1, MEMORY: needed.memory + OF_HEAD}, mounts)
    return {
        # Ray places nothing there: its processors are for the coordinator and for Ray itself.
        "rayStartParams": {"num-cpus": "0", "num-gpus": "0", "object-store-memory": str(OBJECT_STORE)},
        "template": _template(run, pods, labels, container, volumes),
    }


def _group(run: Run, pods: RayPods, labels: Mapping[str, str], role: str, bundles: Sequence[Bundle]) -> Manifest:
    """Return the pods of one kind of bundle, each large enough for the largest."""
    names = {name for bundle in bundles for name in bundle.amounts}
    largest = {name: max(bundle.amounts.get(name, 0) for bundle in bundles) for name in names}
    start = {
        "num-cpus": str(largest[CPU]),
        "num-gpus": str(largest.get(GPU, 0)),
        "memory": str(largest[MEMORY]),
        "object-store-memory": str(OBJECT_STORE),
    }
    return {
        "groupName": role,
        **{key: len(bundles) for key in ("replicas", "minReplicas", "maxReplicas")},
        "rayStartParams": start,
        "template": _template(run, pods, labels, _container(pods, "ray-worker", largest, []), []),
    }


def _template(
    run: Run, pods: RayPods, labels: Mapping[str, str], container: Manifest, volumes: Sequence[Manifest]
) -> Manifest:
    shared = [
        {
            "name": f"volume-{number}",
            "persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only},
        }
        for number, volume in enumerate(pods.volumes)
    ]
    return {
        "metadata": {"labels": dict(labels)},
        "spec": {
            "terminationGracePeriodSeconds": math.ceil(run.checkpoint.grace_s) + SPARE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # The image's user, whoever that is, may write to volumes by this group.
            "securityContext": {
                "fsGroup": GROUP,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **({"serviceAccountName": pods.service_account} if pods.service_account else {}),
            **({"nodeSelector": dict(pods.node_selector)} if pods.node_selector else {}),
            "containers": [container],
            "volumes": [*volumes, *shared],
        },
    }


def _container(pods: RayPods, name: str, amounts: Amounts, mounts: Sequence[Manifest]) -> Manifest:
    shared = [
        {"name": f"volume-{number}", "mountPath": volume.path, "readOnly": volume.read_only}
        for number, volume in enumerate(pods.volumes)
    ]
    memory = f"{math.ceil((amounts[MEMORY] + OVERHEAD + OBJECT_STORE) / 2**20)}Mi"
    gpus = {pods.gpu: str(amounts[GPU])} if amounts.get(GPU) else {}
    secrets = [{"secretRef": {"name": secret}} for secret in pods.environment_secrets]
    return {
        "name": name,
        "image": pods.image,
        **({"envFrom": secrets} if secrets else {}),
        "resources": {
            "requests": {"cpu": str(amounts[CPU]), "memory": memory},
            "limits": {"memory": memory, **gpus},
        },
        "volumeMounts": [*mounts, *shared],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }

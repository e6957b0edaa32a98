"""The pods of a job on Kubernetes: one for each replica, with one container that runs `persia launch-role`."""

import math
from dataclasses import dataclass
from typing import Any

from persia_cli.config.schema import KubernetesCluster
from persia_cli.engines.placement import RANK, SERVER, Resources
from persia_cli.plan.job import COORDINATOR

Manifest = dict[str, Any]

OWN = "/run/persia"
"""The folder of all that the job itself has in its pods, but for SCRATCH and SHARED."""
CONFIG_FOLDER, CONFIG_FILE = "/run/persia/config", "config.yaml"
KEY_FOLDER, KEY = "/run/persia/keys", "keys"
RUNS = "/run/persia/runs"
SCRATCH = "/tmp"
"""The only folder, besides those above, that can be written to; it lasts as long as the pod."""
SHARED = "/dev/shm"
GROUP_READS = 0o440
"""Mode of the file of keys: its owner, root, and the group of the pod's user read it."""
SHARED_MEMORY = "1Gi"
"""Space in SHARED for NCCL. Persia's own shared memory is in anonymous files, which need none."""
SPARE_S = 30
"""Seconds that a pod has to end in, besides those in which the model is saved."""
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
COMPONENT = "app.kubernetes.io/component"
INSTANCE = "app.kubernetes.io/instance"
HOST = "kubernetes.io/hostname"
USER = 1000
"""User and group of the pods, as in the Dockerfile."""
INDEX = "batch.kubernetes.io/job-completion-index"
"""Label that Kubernetes gives each pod of an Indexed Job."""


@dataclass(frozen=True, slots=True)
class PodJob:
    """The common part of all pods of a job."""

    name: str
    settings: KubernetesCluster
    grace_s: float
    """`checkpoint.grace_s`."""
    max_restarts: int = 0
    """`recovery.max_restarts`."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels by which pods of the job are found."""
        return {"app.kubernetes.io/name": "persia", INSTANCE: self.name}

    @property
    def secret(self) -> str:
        """The name of the Secret with the job's keys."""
        return f"{self.name}-keys"

    def metadata(self, name: str) -> Manifest:
        """Return the metadata of an object."""
        return {"name": name, "labels": self.labels}


@dataclass(frozen=True, slots=True)
class RolePods:
    """The pods of one role: how many, and what each needs."""

    role: str
    count: int
    resources: Resources


def pod(job: PodJob, pods: RolePods, arguments: list[str]) -> Manifest:
    """Return the template of a role's pods; their container runs `persia` with these arguments."""
    volumes, mounts = _volumes(job, pods)
    template = {
        "metadata": {
            "labels": {**job.settings.labels, **job.labels, COMPONENT: pods.role},
            "annotations": {SAFE_TO_EVICT: "false"},
        },
        "spec": {
            # A container that ends is started again in its pod; what the coordinator's end means is for its Job to say.
            "restartPolicy": "Never" if pods.role == COORDINATOR else "OnFailure",
            "terminationGracePeriodSeconds": math.ceil(job.grace_s) + SPARE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # So processes of a container that is started again get other numbers, by which others tell them apart.
            "shareProcessNamespace": True,
            "securityContext": _security(),
            **_scheduling(job, pods),
            "containers": [_container(job.settings, pods, arguments, mounts)],
            "volumes": volumes,
        },
    }
    return _completed(template, job.settings.pod)


def _completed(template: Manifest, given: Manifest) -> Manifest:
    """Return a mapping with what the user gives besides; nothing that the job needs changes."""
    both = {
        key: _completed(template[key], given[key])
        for key in template.keys() & given.keys()
        if isinstance(template[key], dict)
    }
    return {**template, **both, **{key: value for key, value in given.items() if key not in template}}


def _security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _scheduling(job: PodJob, pods: RolePods) -> Manifest:
    """Return where pods may run, and with which others.

    Those of embedding servers, which fill the memory of nodes, are spread over them.
    """
    wishes = Manifest()
    if affinity := _affinity(job, pods.role):
        wishes["affinity"] = {"podAffinity": affinity}
    if pods.role == "embedding-server" and pods.count > 1 and job.settings.placement != "packed":
        spread = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "ScheduleAnyway"}
        selector = {"matchLabels": {**job.labels, COMPONENT: pods.role}}
        wishes["topologySpreadConstraints"] = [{**spread, "labelSelector": selector}]
    return wishes


def _affinity(job: PodJob, role: str) -> Manifest:
    """Return the pods whose node a role's pods share: all on one node, or if possible each with one of its index."""
    if job.settings.placement == "packed":
        everybody = {"labelSelector": {"matchLabels": job.labels}, "topologyKey": HOST}
        return {"requiredDuringSchedulingIgnoredDuringExecution": [everybody]}
    owners = {"data-loader": RANK, "embedding-worker": SERVER if job.settings.placement == "beside_servers" else RANK}
    if role not in owners:
        return {}
    selector = {"matchLabels": {**job.labels, COMPONENT: owners[role]}}
    term = {"labelSelector": selector, "matchLabelKeys": [INDEX], "topologyKey": HOST}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def _container(settings: KubernetesCluster, pods: RolePods, arguments: list[str], mounts: list[Manifest]) -> Manifest:
    requests = {"cpu": str(pods.resources.cpus), "memory": f"{math.ceil(pods.resources.memory / 2**20)}Mi"}
    gpus = {settings.gpu: str(pods.resources.gpus)} if pods.resources.gpus else {}
    secrets = [{"secretRef": {"name": name}} for name in settings.environment_secrets]
    return {
        "name": pods.role,
        "image": settings.image,
        "command": ["persia"],
        "args": arguments,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "HOME", "value": SCRATCH},
        ],
        **({"envFrom": secrets} if secrets else {}),
        # No limit of processors: a replica may use what its node has to spare.
        "resources": {"requests": requests, "limits": {"memory": requests["memory"], **gpus}},
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _volumes(job: PodJob, pods: RolePods) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes of a pod, and where its container has them."""
    settings = job.settings
    triples: list[tuple[str, Manifest, Manifest]] = [
        (
            "keys",
            {"secret": {"secretName": job.secret, "defaultMode": GROUP_READS}},
            {"mountPath": KEY_FOLDER, "readOnly": True},
        ),
        ("scratch", {"emptyDir": {}}, {"mountPath": SCRATCH}),
    ]
    if pods.role == COORDINATOR:
        claim = {"persistentVolumeClaim": {"claimName": settings.run_claim}}
        triples += [
            ("config", {"configMap": {"name": f"{job.name}-config"}}, {"mountPath": CONFIG_FOLDER, "readOnly": True}),
            ("runs", claim if settings.run_claim else {"emptyDir": {}}, {"mountPath": RUNS}),
        ]
    if pods.resources.gpus:
        memory = {"emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}
        triples.append(("shm", memory, {"mountPath": SHARED}))
    for number, volume in enumerate(settings.volumes):
        source = {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
        triples.append((f"volume-{number}", source, {"mountPath": volume.path, "readOnly": volume.read_only}))
    return [{"name": key, **source} for key, source, _ in triples], [{"name": key, **at} for key, _, at in triples]

"""The engine of `cluster=kubernetes`, which renders manifests for kubectl and drives no job itself."""

from collections.abc import Callable, Mapping
from pathlib import Path

from persia_cli.config.schema import KubernetesCluster, Run
from persia_cli.engines.configuration import configuration
from persia_cli.engines.engine import Engine, settings_of
from persia_cli.engines.job import JobResult
from persia_cli.engines.kubernetes.jobset import jobset
from persia_cli.engines.kubernetes.names import attach_line, check_name, logs_line, stop_line
from persia_cli.engines.kubernetes.paths import check_paths
from persia_cli.engines.kubernetes.plain_yaml import plain_yaml
from persia_cli.engines.kubernetes.pod import CONFIG_FILE, KEY, Manifest, PodJob, RolePods
from persia_cli.engines.resources import resources_of
from persia_cli.errors import ConfigError, UserError
from persia_cli.plan.job import COORDINATOR, JobPlan, expected_replicas
from persia_cli.version import __version__

MOST_BYTES = 2**20
"""Size of a ConfigMap, at the most."""
HEAD = """\
# The job {name}, made by persia {version}. The cluster needs JobSet: https://jobset.sigs.k8s.io
# The job's keys are not in here. Give them to the cluster once, before this file:
#   persia keys new {name}.keys
#   kubectl create secret generic {secret} --from-file={key}={name}.keys
# Then, once its coordinator runs, the first of these shows it, and the second saves the model and ends it:
#   {attach}
#   {stop}
"""
FORGETS = """\
# The record of the run goes with the coordinator's pod, and a job that ends early does not go on; to keep it, set
# cluster.run_claim.
"""


class KubernetesEngine(Engine):
    """An engine whose replicas are pods; JobSet starts them, and the whole job again where a driver would."""

    def launch(self, plan: JobPlan, follow: Callable[[], None]) -> JobResult:
        """Refuse to drive a job; raises UserError."""
        raise UserError("cluster=kubernetes: no command drives a job; --render prints what kubectl takes")

    def rendered(self, run: Run, run_dir: Path | None) -> str:
        """Return the manifests, with the same name each time: a job that is given to the cluster again goes on."""
        return as_yaml(run, run_dir.absolute().name if run_dir else run.name)

    def stop_line(self, name: str) -> str:
        """Return the line that ends a job: Kubernetes would start its roles again after `persia stop`."""
        return stop_line(name)

    def logs_line(self, name: str, role: str) -> str:
        """Return the line that prints logs, which are those of the pods."""
        return logs_line(name, role)


def manifests(run: Run, name: str) -> list[Manifest]:
    """Return the manifests of a job of this name; raises ConfigError for paths that pods do not have."""
    settings = settings_of(run, KubernetesCluster)
    if settings.image is None:
        raise ConfigError("cluster=kubernetes needs cluster.image: an image with the command persia")
    job = PodJob(name, settings, run.checkpoint.grace_s, run.recovery.max_restarts)
    counts = {COORDINATOR: 1, **expected_replicas(run)}
    check_name(name)
    check_paths(run, settings.volumes)
    made = jobset(job, [RolePods(role, count, resources_of(run, role)) for role, count in counts.items()])
    return [config_map(job.metadata(f"{name}-config"), run), network_policy(job.metadata(name), job.labels), made]


def as_yaml(run: Run, name: str) -> str:
    """Return the manifests of a job as YAML, below what has to be done before."""
    made, settings = manifests(run, name), settings_of(run, KubernetesCluster)
    secret = PodJob(name, settings, run.checkpoint.grace_s).secret
    head = HEAD.format(
        name=name,
        version=__version__,
        secret=secret,
        key=KEY,
        attach=attach_line(name),
        stop=stop_line(name),
    )
    text = plain_yaml(made)
    return f"{head}{'' if settings.run_claim else FORGETS}---\n{text}".removesuffix("\n")


def config_map(metadata: Manifest, run: Run) -> Manifest:
    """Return the ConfigMap with the complete configuration, for the coordinator, from which the others have it."""
    text = configuration(run)
    if len(text.encode()) > MOST_BYTES:
        raise ConfigError(f"the configuration has {len(text.encode()):,} bytes, and a ConfigMap {MOST_BYTES:,} at most")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "data": {CONFIG_FILE: text},
    }


def network_policy(metadata: Manifest, labels: Mapping[str, str]) -> Manifest:
    """Return the policy by which pods with these labels are reached by each other alone."""
    pods = {"podSelector": {"matchLabels": dict(labels)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
    }

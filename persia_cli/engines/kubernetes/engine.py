"""The engine of `cluster=kubernetes`, which renders manifests for kubectl and drives no job itself.

Paths in a configuration are those of pods, not of the machine where a job is rendered.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import yaml

from persia_cli.config.schema import CustomModel, KubernetesCluster, ParquetDataset, Run, Volume
from persia_cli.engines.driver_input import configuration
from persia_cli.engines.engine import Engine, settings_of
from persia_cli.engines.job import JobResult
from persia_cli.engines.kubernetes.names import attach_line, check_name, host_name, logs_line, stop_line
from persia_cli.engines.kubernetes.pod import (
    CONFIG_FILE,
    CONFIG_FOLDER,
    KEY,
    KEY_FOLDER,
    OWN,
    RUNS,
    SCRATCH,
    SHARED,
    Manifest,
    PodJob,
    RolePods,
    pod,
)
from persia_cli.engines.placement import resources_of
from persia_cli.engines.role_options import AUTO, role_arguments
from persia_cli.errors import ConfigError, PreemptedError, UserError
from persia_cli.plan.job import COORDINATOR, JobPlan, expected_replicas
from persia_cli.storage.addresses import DELTA, is_elsewhere
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
API = "jobset.x-k8s.io/v1alpha2"
PORT = 7070
"""Port of the coordinator, whose pod has its own address; the others listen at any port of theirs."""
NO_LIMIT = 2**31 - 1
"""Restarts of the containers of a role: the coordinator decides when deaths are too many, and its end is the job's."""
NO_PLAIN_TEXT = re.compile(r"[-+.]*[0-9._]|[yYnN]$")
"""Beginnings of texts that some reader may take for a number, a time or a truth value, besides those PyYAML knows."""
OTHER_BREAKS = re.compile("[\x85\u2028\u2029]")
"""Characters that end a line to some readers, and to others do not."""
VOLUMES = "cluster.volumes"
ONLY_THE_JOBS = ("/proc", "/sys", OWN)
"""Folders in which there is no place for a volume, besides those where the job has its own volume."""
HERE = ("file://", "local://")
"""Beginnings of URIs of a machine's own files."""


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
    job_set = jobset(job, [RolePods(role, count, resources_of(run, role)) for role, count in counts.items()])
    return [config_map(job.metadata(f"{name}-config"), run), network_policy(job.metadata(name), job.labels), job_set]


def as_yaml(run: Run, name: str) -> str:
    """Return the manifests of a job as YAML, below what has to be done before."""
    objects, settings = manifests(run, name), settings_of(run, KubernetesCluster)
    secret = PodJob(name, settings, run.checkpoint.grace_s).secret
    head = HEAD.format(
        name=name,
        version=__version__,
        secret=secret,
        key=KEY,
        attach=attach_line(name),
        stop=stop_line(name),
    )
    text = plain_yaml(objects)
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


def jobset(job: PodJob, roles: Sequence[RolePods]) -> Manifest:
    """Return the JobSet of a job, whose end is that of its coordinator."""
    settings, metadata = job.settings, job.metadata(job.name)
    metadata["labels"] = {**settings.labels, **job.labels}
    # The end of the coordinator's Job by its rules is a user's mistake, which would come again.
    never_again = {"name": "usersMistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    failure = {
        "maxRestarts": job.max_restarts if settings.run_claim else 0,
        "restartStrategy": "BlockingRecreate",  # old pods are gone before new ones begin: no two jobs
        "rules": [{**never_again, "targetReplicatedJobs": [COORDINATOR]}],
    }
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            # Roles have to find the coordinator before it is ready, which it is once they have come.
            "network": {"enableDNSHostnames": True, "subdomain": job.name, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [COORDINATOR]},
            "failurePolicy": failure,
            "replicatedJobs": [_replicated_job(job, pods) for pods in roles],
        },
    }


def _replicated_job(job: PodJob, pods: RolePods) -> Manifest:
    spec: Manifest = {"parallelism": pods.count, "completions": pods.count, "completionMode": "Indexed"}
    if pods.role == COORDINATOR:
        spec["backoffLimit"] = 0  # its failure is the job's, which JobSet begins again with all roles
        spec["podFailurePolicy"] = {"rules": _ends_of_coordinator(resumes=job.settings.run_claim is not None)}
    else:
        spec["backoffLimit"] = NO_LIMIT
    spec["template"] = pod(job, pods, _arguments(job, pods.role))
    return {"name": pods.role, "replicas": 1, "template": {"spec": spec}}


def _arguments(job: PodJob, role: str) -> list[str]:
    """Return the arguments of `persia` for all replicas of a role; Kubernetes puts in what is in `$(…)`."""
    keys = f"{KEY_FOLDER}/{KEY}"
    if role == COORDINATOR:
        run = ["--run-dir", f"{RUNS}/{job.name}", f"conf={CONFIG_FOLDER}/{CONFIG_FILE}", "resume=auto"]
        return [*role_arguments(role, AUTO, f"tcp://$(POD_IP):{PORT}", keys), *run]
    coordinator = f"tcp://{host_name(job.name, COORDINATOR, 0)}.{job.name}:{PORT}"
    return role_arguments(role, AUTO, coordinator, keys, advertise="tcp://$(POD_IP):*")


def _ends_of_coordinator(resumes: bool) -> list[Manifest]:
    """Return which ends of the coordinator end everything, and which count as none; `resumes` if its record is kept."""

    def ended_with(code: int, action: str) -> Manifest:
        return {"action": action, "onExitCodes": {"containerName": COORDINATOR, "operator": "In", "values": [code]}}

    never_again = ended_with(UserError.exit_code, "FailJob")
    if not resumes:
        return [never_again]
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return [never_again, ended_with(PreemptedError.exit_code, "Ignore"), disrupted]


def plain_yaml(manifests: Sequence[Manifest]) -> str:
    """Return manifests as the documents of a file for kubectl: equal values written again, long texts unchanged.

    Kubectl reads by rules of YAML that are not PyYAML's: to it `1e3`, `0o17` and `12e4567` are numbers, and `y` is
    true. So such texts have quotes.
    """
    return yaml.dump_all(manifests, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


class _Plain(yaml.SafeDumper):
    """Writes equal values again instead of referring to the first."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


def _style(text: str) -> str | None:
    if OTHER_BREAKS.search(text):
        return '"'
    if "\n" in text:
        return "|"
    return '"' if NO_PLAIN_TEXT.match(text) else None


_Plain.add_representer(str, _text)


def check_paths(run: Run, volumes: Sequence[Volume]) -> None:
    """Raise ConfigError for paths that pods cannot have, and for checkpoints that have no place all pods reach."""
    _check_volumes(volumes)
    for key, path in _paths(run):
        if not _is_elsewhere(path) and not _here(path).startswith("/"):
            raise ConfigError(
                f"{key}={path}: pods do not have the files of this machine; give a URI, or an absolute path in one of "
                f"{VOLUMES} or in the image"
            )
    location = run.checkpoint.path
    if run.checkpoint.saves and not (location and (_is_elsewhere(location) or _is_written(location, volumes))):
        raise ConfigError(
            "checkpoint.path has to be a URI that all pods reach, such as s3://bucket/folder, or in one of "
            f"{VOLUMES} with read_only: false; or save nothing (checkpoint.at_end=false and "
            "checkpoint.every_minutes=null)"
        )


def _check_volumes(volumes: Sequence[Volume]) -> None:
    """Raise ConfigError for a volume that would hide files of the job or of the system."""
    for volume in volumes:
        at = PurePosixPath("/" + posixpath.normpath(volume.path).lstrip("/"))
        hidden = [folder for folder in (SCRATCH, SHARED, *ONLY_THE_JOBS) if PurePosixPath(folder).is_relative_to(at)]
        if hidden or any(at.is_relative_to(folder) for folder in ONLY_THE_JOBS):
            what = f"{at} hides {hidden[0]}, which" if hidden and hidden[0] != str(at) else f"{at}"
            raise ConfigError(
                f"{VOLUMES}: the path {what} pods have for themselves; give {volume.claim} another one, such as /data"
            )


def _paths(run: Run) -> Iterator[tuple[str, str]]:
    if isinstance(run.dataset, ParquetDataset):
        yield from (("dataset.path", path) for path in run.dataset.paths)
    if isinstance(run.model, CustomModel):
        yield "model.file", run.model.file
    if run.init_from is not None:
        yield from ([("init_from.path", run.init_from.path)] if run.init_from.path else [])
        yield from ((f"init_from.vectors.{name}.path", file.path) for name, file in run.init_from.vectors.items())
    if run.checkpoint.path is not None:
        yield "checkpoint.path", run.checkpoint.path


def _is_elsewhere(path: str) -> bool:
    return is_elsewhere(path) and not path.removeprefix(DELTA).startswith(HERE)


def _here(path: str) -> str:
    """Return the path of a machine's own file, which may be named by a URI."""
    path = path.removeprefix(DELTA)
    return unquote(urlsplit(path).path) if path.startswith(HERE) else path


def _is_written(path: str, volumes: Sequence[Volume]) -> bool:
    at = PurePosixPath(posixpath.normpath(_here(path)))
    return any(at.is_relative_to(volume.path) for volume in volumes if not volume.read_only)

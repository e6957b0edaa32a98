"""The JobSet of a job: an Indexed Job for each role, and what their ends mean."""

from collections.abc import Sequence

from persia_cli.engines.kubernetes.names import host_name
from persia_cli.engines.kubernetes.pod import (
    CONFIG_FILE,
    CONFIG_FOLDER,
    KEY,
    KEY_FOLDER,
    RUNS,
    Manifest,
    PodJob,
    RolePods,
    pod,
)
from persia_cli.engines.role_options import AUTO
from persia_cli.engines.role_words import role_words
from persia_cli.errors import PreemptedError, UserError
from persia_cli.plan.job import COORDINATOR

API = "jobset.x-k8s.io/v1alpha2"
PORT = 7070
"""Port of the coordinator, whose pod has its own address; the others listen at any port of theirs."""
NO_LIMIT = 2**31 - 1
"""Restarts of the containers of a role: the coordinator decides when deaths are too many, and its end is the job's."""


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
        spec["podFailurePolicy"] = {"rules": _ends_of_coordinator(goes_on=job.settings.run_claim is not None)}
    else:
        spec["backoffLimit"] = NO_LIMIT
    spec["template"] = pod(job, pods, _words(job, pods.role))
    return {"name": pods.role, "replicas": 1, "template": {"spec": spec}}


def _words(job: PodJob, role: str) -> list[str]:
    """Return the arguments of `persia` for all replicas of a role; Kubernetes puts in what is in `$(…)`."""
    keys = f"{KEY_FOLDER}/{KEY}"
    if role == COORDINATOR:
        run = ["--run-dir", f"{RUNS}/{job.name}", f"conf={CONFIG_FOLDER}/{CONFIG_FILE}", "resume=auto"]
        return [*role_words(role, AUTO, f"tcp://$(POD_IP):{PORT}", keys), *run]
    coordinator = f"tcp://{host_name(job.name, COORDINATOR, 0)}.{job.name}:{PORT}"
    return role_words(role, AUTO, coordinator, keys, advertise="tcp://$(POD_IP):*")


def _ends_of_coordinator(goes_on: bool) -> list[Manifest]:
    """Return which ends of the coordinator end everything, and which count as none; `goes_on` if its record is kept."""

    def ended_with(code: int, action: str) -> Manifest:
        return {"action": action, "onExitCodes": {"containerName": COORDINATOR, "operator": "In", "values": [code]}}

    never_again = ended_with(UserError.exit_code, "FailJob")
    if not goes_on:
        return [never_again]
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return [never_again, ended_with(PreemptedError.exit_code, "Ignore"), disrupted]

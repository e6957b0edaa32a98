"""A JobSet, run from its YAML alone on hosts of a lab, as Kubernetes and its controllers would run it.

It implements the controllers' features that a job of Persia uses: Indexed Jobs, containers that are restarted in
place, rules for the end of a pod, restarts of the whole JobSet, and names of pods. It enforces no NetworkPolicy and
limits no memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import poll_for
from tests.support.hosts import Host
from tests.support.pods import NAMES, Cluster, Pod

COMPLETED, FAILED = "Completed", "Failed"
"""Ends of a JobSet, as it names them."""
DELETED = "Deleted"


class ManifestRunner:
    """A running JobSet; `outcome` is empty until it has ended."""

    def __init__(self, text: str, hosts: list[Host], cluster: Cluster, logs: Path) -> None:
        manifests = list(yaml.safe_load_all(text))
        for manifest in manifests:
            if manifest["kind"] == "ConfigMap":
                data = {name: value.encode() for name, value in manifest["data"].items()}
                cluster.config_maps[manifest["metadata"]["name"]] = data
        [self._jobset] = [manifest for manifest in manifests if manifest["kind"] == "JobSet"]
        self._spec = self._jobset["spec"]
        self._jobs = {job["name"]: job["template"]["spec"] for job in self._spec["replicatedJobs"]}
        self._hosts, self._cluster, self._logs = hosts, cluster, logs
        self.pods: dict[tuple[str, int], Pod] = {}
        self.restarts = 0
        """Number of restarts of the whole JobSet."""
        self.replaced = 0
        """Pods that ended and were replaced."""
        self.outcome = ""
        logs.mkdir(exist_ok=True)

    def start(self) -> None:
        """Make all pods and start their containers; names are known once all exist, the coordinator's last."""
        places = iter(self._hosts)
        for role, job in reversed(self._jobs.items()):
            assert job["completionMode"] == "Indexed"
            assert job["parallelism"] == job["completions"]
            _require_schedulable(job["template"])
            for index in range(job["completions"]):
                self._make(role, index, next(places))
        self._publish_names()

    def _make(self, role: str, index: int, host: Host) -> None:
        name = f"{self._jobset['metadata']['name']}-{role}-0-{index}"
        log = self._logs / f"{role}-{index}.log"
        self.pods[role, index] = pod = Pod(name, self._jobs[role]["template"], index, host, self._cluster, log)
        pod.start()

    def _publish_names(self) -> None:
        """Write the names of all pods, ready or not, to all hosts."""
        network = self._spec["network"]
        assert network["enableDNSHostnames"]
        assert network["publishNotReadyAddresses"]
        lines = [f"{pod.host.address} {pod.name}.{network['subdomain']}\n" for pod in self.pods.values()]
        for pod in self.pods.values():
            (pod.host.root / NAMES.lstrip("/")).write_text("127.0.0.1 localhost\n" + "".join(lines))

    def tick(self) -> None:
        """Do the controllers' work for containers that have ended."""
        for (role, index), pod in list(self.pods.items()):
            code = pod.exit_code
            if self.outcome or code is None or (code == 0 and not self._decides(role)):
                continue
            if pod.disrupted or (self._decides(role) and self._rule(role, pod, code) == "Ignore"):
                self.replaced += 1
                self._make(role, index, pod.host)
                self._publish_names()
            elif code == 0:
                self._end(COMPLETED)
            elif pod.restarts_in_place:
                pod.start_again()
            else:
                self._fail(self._rule(role, pod, code) == "FailJob", role)

    def _decides(self, role: str) -> bool:
        """Return True if the end of a role's Job is that of the JobSet."""
        return role in self._spec["successPolicy"]["targetReplicatedJobs"]

    def _rule(self, role: str, pod: Pod, code: int) -> str:
        """Return the action of the first matching rule for the end of a pod; empty if none matches."""
        if not code:
            return ""
        for rule in self._jobs[role].get("podFailurePolicy", {}).get("rules", []):
            if "onExitCodes" in rule:
                assert rule["onExitCodes"]["operator"] == "In"
                fits = code in rule["onExitCodes"]["values"]
            else:
                fits = pod.disrupted and {"type": "DisruptionTarget", "status": "True"} in rule["onPodConditions"]
            if fits:
                return str(rule["action"])
        return ""

    def _fail(self, by_rule: bool, role: str) -> None:
        """Handle a failed Job: end everything, or restart everything."""
        policy = self._spec["failurePolicy"]
        assert self._jobs[role]["backoffLimit"] == 0
        reason = "PodFailurePolicy" if by_rule else "BackoffLimitExceeded"
        for rule in policy["rules"]:
            if reason in rule["onJobFailureReasons"] and role in rule["targetReplicatedJobs"]:
                assert rule["action"] == "FailJobSet"
                self._end(FAILED)
                return
        if self.restarts >= policy["maxRestarts"]:
            self._end(FAILED)
            return
        self.restarts += 1
        self._remove_all()
        self.start()

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self._remove_all()

    def delete(self) -> None:
        """Delete the JobSet as Kubernetes does: signal all pods to end, and kill the remaining ones."""
        for pod in self.pods.values():
            if pod.exit_code is None:
                pod.evict()
        within_s = max(pod.grace_s for pod in self.pods.values())
        try:
            poll_for(lambda: all(pod.exit_code is not None for pod in self.pods.values()), within_s, "the end of all")
        except BaseException:
            print(self.said())
            raise
        self._end(DELETED)

    def _remove_all(self) -> None:
        for pod in self.pods.values():
            pod.remove()

    def wait(self, condition: Any, within_s: float, what: str) -> None:
        """Let the controllers work until a condition holds."""

        def holds() -> bool:
            self.tick()
            return bool(condition())

        try:
            poll_for(holds, within_s, what)
        except BaseException:
            print(self.said())
            raise

    def said(self) -> str:
        """The last lines of all containers."""
        return "\n".join(f"== {pod.name}\n{pod.said()[-2000:]}" for pod in self.pods.values())


@contextmanager
def running(text: str, hosts: list[Host], cluster: Cluster, logs: Path) -> Iterator[ManifestRunner]:
    """Run manifests; end the remaining processes."""
    runner = ManifestRunner(text, hosts, cluster, logs)
    try:
        runner.start()
        yield runner
    finally:
        for pod in runner.pods.values():
            pod.remove()


def _require_schedulable(template: dict[str, Any]) -> None:
    """Require that a pod with affinity to others can be the first: its own labels match."""
    affinity = template["spec"].get("affinity", {}).get("podAffinity", {})
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", []):
        wanted = term["labelSelector"]["matchLabels"].items()
        assert wanted <= template["metadata"]["labels"].items(), f"no first pod is ever placed: {term}"

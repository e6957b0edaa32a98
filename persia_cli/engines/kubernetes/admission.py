"""The rules by which JobSet's webhook admits a JobSet, which its schema does not have (jobset_webhook.go, v1alpha2)."""

from collections.abc import Iterator
from typing import Any

from persia_cli.engines.kubernetes.names import LABEL, MOST, SUFFIX

GATED_ACTIONS = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
GATED_STRATEGIES = ("InPlaceRestart",)
"""What JobSet refuses unless an alpha feature is switched on, which most clusters have not."""


def refusals(jobset: dict[str, Any]) -> list[str]:
    """Return what JobSet's webhook would refuse of a JobSet, a sentence each; none if it is admitted."""
    name, spec = jobset["metadata"]["name"], jobset["spec"]
    return [*_names(name, spec), *_policies(spec, [job["name"] for job in spec["replicatedJobs"]])]


def _names(name: str, spec: dict[str, Any]) -> Iterator[str]:
    """Every job and pod that JobSet makes, and its subdomain, is called by a label of DNS."""
    subdomain = spec.get("network", {}).get("subdomain", name)
    if not _is_label(subdomain):
        yield f"the subdomain {subdomain} is no label of DNS"
    for job in spec["replicatedJobs"]:
        made = f"{name}-{job['name']}-{job.get('replicas', 1) - 1}"
        if not _is_label(made):
            yield f"the Job {made} is not called by a label of DNS of at most {MOST} characters"
        jobs = job["template"]["spec"]
        if jobs.get("completionMode") == "Indexed" and not _is_label(f"{made}-{jobs['completions'] - 1}{SUFFIX}"):
            yield f"a pod of {made} is not called by a label of DNS of at most {MOST} characters"


def _policies(spec: dict[str, Any], roles: list[str]) -> Iterator[str]:
    """Policies name replicated jobs that there are, and ask for nothing that is switched off."""
    failure = spec.get("failurePolicy", {})
    if failure.get("restartStrategy") in GATED_STRATEGIES:
        yield f"the restart strategy {failure['restartStrategy']} is alpha and switched off"
    names = [rule["name"] for rule in failure.get("rules", [])]
    yield from (f"two rules are called {name}" for name in set(names) if names.count(name) > 1)
    yield from (
        f"the action {rule['action']} is alpha and switched off"
        for rule in failure.get("rules", [])
        if rule["action"] in GATED_ACTIONS
    )
    targets = [*spec.get("successPolicy", {}).get("targetReplicatedJobs", [])]
    targets += [target for rule in failure.get("rules", []) for target in rule.get("targetReplicatedJobs", [])]
    yield from (f"there is no replicated job {target} for a policy" for target in targets if target not in roles)


def _is_label(text: str) -> bool:
    return len(text) <= MOST and LABEL.fullmatch(text) is not None

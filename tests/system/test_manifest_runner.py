"""Jobs are trained from their manifests alone, one host for each pod, and end accordingly whatever happens to pods."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines.job import result_of
from persia_cli.engines.kubernetes.engine import as_yaml
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.plan.job import all_replicas
from persia_cli.store.checkpoints.manifest import finished_steps
from persia_cli.wire.secret import new_keys
from tests.conftest import poll_for
from tests.support.hosts import lab, needs_hosts
from tests.support.manifest_runner import COMPLETED, ManifestRunner, running
from tests.support.pods import Cluster
from tests.support.small import STEPS, WORDS

pytestmark = [pytest.mark.slow, needs_hosts, pytest.mark.timeout(600)]

LIMIT_S = 400.0
SAVED = "/run/saved"
SMALL = [
    *WORDS,
    "cluster=kubernetes",
    "cluster.image=persia",
    "cluster.run_claim=runs",
    f"cluster.volumes=[{{claim: saved, path: {SAVED}, read_only: false}}]",
    f"checkpoint.path={SAVED}/shop",
]
LARGE = ["data_loaders=2", "embedding_workers=2", "embedding_servers=4", "nn_workers=2"]
NAME = "shop"


class Job:
    """A running job, and the folders of its claims."""

    def __init__(self, runner: ManifestRunner, claims: dict[str, Path]) -> None:
        self.runner, self.run_dir, self.saved = runner, claims["runs"] / NAME, claims["saved"] / NAME

    def wait_for_step(self, step: int) -> None:
        """Wait until a step is in the record."""

        def reached() -> bool:
            lines = read_journal(self.run_dir / METRICS) if (self.run_dir / METRICS).exists() else []
            assert not self.runner.outcome, self.runner.said()
            return bool(lines and lines[-1]["step"] >= step)

        self.runner.wait(reached, LIMIT_S, f"step {step}")

    def end(self) -> str:
        """Wait for the end and return how it was."""
        self.runner.wait(lambda: self.runner.outcome, LIMIT_S, "the end of the job")
        return self.runner.outcome


@contextmanager
def job_of(tmp_path: Path, *words: str) -> Iterator[Job]:
    run = compose_run([*SMALL, *words])
    text = as_yaml(run, NAME)
    claims = {name: tmp_path / "claims" / name for name in ("runs", "saved")}
    for folder in claims.values():
        folder.mkdir(parents=True)
    cluster = Cluster({f"{NAME}-keys": {"keys": new_keys().secret + b"\n"}}, claims=claims)
    with (
        lab(len(all_replicas(run)), shown=[tmp_path / "claims"]) as hosts,
        running(text, hosts, cluster, tmp_path / "logs") as runner,
    ):
        yield Job(runner, claims)


def test_a_job_of_eleven_pods_goes_back_to_its_checkpoint_when_a_container_is_killed(tmp_path: Path) -> None:
    words = [*(f"cluster.{count}" for count in LARGE), "checkpoint.every_steps=50", "cluster.silence_timeout_s=10"]
    with job_of(tmp_path, *words) as job:
        pods = job.runner.pods
        assert len(pods) == 11
        job.wait_for_step(80)
        pods["data-loader", 0].kill()
        assert job.end() == COMPLETED
        assert (job.runner.restarts, job.runner.replaced) == (1, 0)
        assert "are encrypted with the keys" in pods["embedding-server", 3].said()
    result = result_of(job.run_dir)
    [ready] = [event for event in result.events if event["event"] == "ready"]
    assert {each["host"] for each in ready["replicas"]} == {pod.name for pod in pods.values()}
    lines = [line["step"] for line in read_journal(job.run_dir / METRICS) if line["split"] == "train"]
    assert lines == list(range(lines[0], lines[0] + STEPS))
    earlier = read_journal(next((job.run_dir / "earlier").iterdir()) / EVENTS)
    [failed] = [event for event in earlier if event.get("phase") == "failed"]
    assert failed["error"].startswith("data-loader-0 (process ")
    assert "has shown no progress for 10 s" in failed["error"]
    assert finished_steps(job.saved)[-1] == STEPS


def test_a_job_is_shown_and_saved_in_its_coordinators_container(
    tmp_path: Path,
) -> None:
    run = f"/run/persia/runs/{NAME}"
    with job_of(tmp_path, "dataset.generator.train_rows=1000000000", "train.log_every_steps=5") as job:
        job.wait_for_step(5)
        first, shown = job.runner.pods["coordinator", 0], tmp_path / "attach"

        def said(*words: str) -> tuple[int, str]:
            with (tmp_path / "said").open("wb") as output:
                process = first.execute(["persia", *words], output)
            job.runner.wait(lambda: process.poll() is not None, LIMIT_S, f"the end of persia {words[0]}")
            return process.wait(), (tmp_path / "said").read_text()

        with shown.open("wb") as output:
            attach = first.execute(["persia", "attach", run], output)
        job.runner.wait(lambda: "training  step " in shown.read_text(), LIMIT_S, "the job on the screen")
        code, text = said("checkpoint", "now", run)
        assert (code, len(finished_steps(job.saved))) == (0, 1), text
        code, text = said("stop", run)
        assert code == 2
        assert f"kubectl delete jobset {NAME} --cascade=foreground saves the model first" in text
        code, text = said("logs", run, "embedding-server-0")
        assert code == 2
        assert f"-l app.kubernetes.io/instance={NAME},app.kubernetes.io/component=embedding-server," in text
        job.runner.delete()
        assert {pod.exit_code for pod in job.runner.pods.values()} <= {0, 75}, job.runner.said()
        assert len(finished_steps(job.saved)) == 2
        # It ends with its container, at the latest, which may be before its last output.
        poll_for(lambda: attach.poll() is not None, 20.0, "the end of persia attach")
        assert shown.read_text().count("saved     ") == 2


def test_an_evicted_pod_costs_no_step_and_counts_as_no_failure(tmp_path: Path) -> None:
    with job_of(tmp_path, "checkpoint.grace_s=120", "cluster.placement=packed") as job:
        job.wait_for_step(20)
        job.runner.pods["embedding-server", 0].evict()
        assert job.end() == COMPLETED
        assert job.runner.restarts == 0
        assert job.runner.replaced == 2  # the server, and the coordinator, whose exit code was 75
        assert job.runner.pods["data-loader", 0].restarts >= 1
    lines = [line["step"] for line in read_journal(job.run_dir / METRICS) if line["split"] == "train"]
    assert lines == list(range(lines[0], lines[0] + STEPS))
    assert len(finished_steps(job.saved)) == 2

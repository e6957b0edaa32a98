"""`cluster=slurm` on a real Slurm of two machines, which are hosts of a lab and share no disk."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from persia_cli.engines.job import COORDINATOR_ADDRESS, result_of
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.wire.secret import JobKeys, read_keys
from tests.conftest import poll_for
from tests.support.host_job import NO_FILES
from tests.support.hosts import HostProcess, lab, needs_hosts
from tests.support.jobs import evaluation, losses, train
from tests.support.s3 import store_on
from tests.support.secrecy import leaks_in_files, leaks_in_processes
from tests.support.slurm import ENVIRONMENT, LIMIT_S, PERSIA, SlurmCluster, cluster_on, free_store, needs_slurm
from tests.support.small import WORDS
from tests.support.traced import read_trace

pytestmark = [pytest.mark.slow, needs_hosts, needs_slurm, pytest.mark.timeout(600)]

TWO = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
ON_SLURM = ["cluster=slurm", *TWO, f"cluster.persia='{sys.executable} -P -m persia_cli'"]
LOGGED = ["train.log_every_steps=50"]
RUN = "/tmp/runs/shop"
IN_TMP = ["/bin/sh", "-c", 'cd /tmp && exec "$@"', "sh", *PERSIA]
"""Begin of a command that runs in a folder of its host, and so makes its run directory there."""


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    with lab(2) as hosts, cluster_on(hosts) as made:
        yield made


def start(cluster: SlurmCluster, log: Path, *words: str) -> HostProcess:
    """Start `persia train` on the first host."""
    return cluster.start(*PERSIA, "train", *words, "--run-dir", RUN, log=log)


def events(cluster: SlurmCluster, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_journal(cluster.seen(RUN) / EVENTS) if event["event"] == kind]


def trained(cluster: SlurmCluster) -> int:
    """Steps that are trained, as the record has them."""
    return max(line["step"] for line in read_journal(cluster.seen(RUN) / METRICS))


def wait_for(process: HostProcess, log: Path) -> int:
    poll_for(lambda: process.poll() is not None, LIMIT_S, "the end of persia train")
    print(log.read_text()[-6000:])
    return process.wait()


def wait_until_empty(cluster: SlurmCluster) -> None:
    poll_for(lambda: not cluster.jobs() and not cluster.supervisors(), 60.0, "the end of all jobs and roles")


def keys_of(process: psutil.Process) -> JobKeys:
    """The keys in the memory that a supervisor was given."""
    for file in Path(f"/proc/{process.pid}/fd").iterdir():
        if "memfd:keys" in str(file.readlink()):
            return read_keys(file)
    raise AssertionError(f"{process.cmdline()} has no keys")


def test_a_job_over_two_machines_has_the_bits_of_one_on_this_machine(cluster: SlurmCluster, tmp_path: Path) -> None:
    log, words = tmp_path / "said", [*WORDS, *NO_FILES, "dataset.generator.train_rows=64000"]
    process = start(cluster, log, *words, *ON_SLURM)
    cluster.wait_for_training(RUN, log)
    keys = keys_of(cluster.supervisors("nn-worker")[0])
    everything = [child for host in cluster.hosts for child in psutil.Process(host.pid).children(recursive=True)]
    assert not list(leaks_in_processes(keys, everything))
    assert wait_for(process, log) == 0
    wait_until_empty(cluster)
    there, here = result_of(cluster.seen(RUN)), train([*words, *TWO, "cluster=local"], tmp_path / "here")
    assert losses(there) == losses(here)
    assert evaluation(there)["auc"] == evaluation(here)["auc"]
    [ready] = [event for event in there.events if event["event"] == "ready"]
    assert {each["name"]: each["host"] for each in ready["replicas"] if each["host"] == "host2"} == {
        "embedding-server-1": "host2",
        "embedding-worker-1": "host2",
    }
    logs = {path.stem: path.read_text() for path in (cluster.seen(RUN) / "roles").iterdir()}
    assert len(logs) == 7
    assert all(keys.fingerprint in text for text in logs.values())
    assert leaks_in_files(keys, [host.root / "tmp" for host in cluster.hosts]) == []


def test_a_packed_job_keeps_to_one_machine_and_is_traced(cluster: SlurmCluster, tmp_path: Path) -> None:
    log, trace, own = tmp_path / "said", "/tmp/steps.json", sorted(os.sched_getaffinity(0))
    first, last = own[0], own[-1]
    pins = f"cluster.pin={{embedding_server: [{first}, {last}], data_loader: {last}}}"
    words = [*WORDS, *NO_FILES, *ON_SLURM, "dataset.generator.train_rows=64000", "cluster.placement=packed", pins]
    process = start(cluster, log, *words, "--trace", trace, "--trace-steps", "5:35")
    cluster.wait_for_training(RUN, log)
    kept = {"embedding-server --index 0": {first}, "embedding-server --index 1": {last}, "data-loader": {last}}
    for name, processors in (kept | {"nn-worker": set(own)}).items():
        [replica] = cluster.replicas(f"launch-role {name}")
        assert [os.sched_getaffinity(each.id) for each in replica.threads()] == [processors] * replica.num_threads()
    assert wait_for(process, log) == 0
    wait_until_empty(cluster)
    [ready] = events(cluster, "ready")
    assert {each["host"] for each in ready["replicas"]} == {"host1"}
    shared = [event["text"] for event in events(cluster, "warning")]
    assert [text.partition(", and wait")[0] for text in shared] == [
        f"data-loader-0, embedding-server-1 share processors {last} of host1"
    ]
    said = log.read_text()
    assert f"{trace}: steps 5 to 34, " in said
    assert "in part" not in said
    assert "without" not in said
    names = {each["name"] for each in ready["replicas"]} - {"coordinator-0"}
    spans = read_trace(cluster.seen(trace))
    assert {span.replica for span in spans} == names
    assert {span.step for span in spans if span.name == "look-up"} == set(range(5, 35))


@pytest.mark.parametrize(
    ("words", "sentence", "log_of"),
    [
        (["cluster.partition=none"], "refuses the job: sbatch: invalid partition specified: none; Batch job", ""),
        (["checkpoint.at_end=true"], "set checkpoint.path to a URI that all reach", "embedding-server-1 on host2"),
    ],
)
def test_a_mistake_ends_the_job_at_once_with_a_sentence(
    words: list[str], sentence: str, log_of: str, cluster: SlurmCluster, tmp_path: Path
) -> None:
    log = tmp_path / "said"
    assert wait_for(start(cluster, log, *WORDS, *NO_FILES, *ON_SLURM, *words), log) == 2
    assert sentence in log.read_text()
    assert log_of in log.read_text()
    assert "Traceback" not in log.read_text()
    wait_until_empty(cluster)


def test_killed_replicas_return_to_their_machine_or_the_job_rolls_back(cluster: SlurmCluster, tmp_path: Path) -> None:
    log = tmp_path / "said"
    with store_on(cluster.hosts[1]):
        saved = f"checkpoint.path='{free_store(cluster.hosts[1], 'killed')}'"
        often = ["checkpoint.every_steps=500", "dataset.generator.train_rows=128000"]
        process = start(cluster, log, *WORDS, *LOGGED, *ON_SLURM, saved, *often)
        cluster.wait_for_training(RUN, log)
        before = {each.pid for each in cluster.replicas()}
        cluster.replicas("launch-role data-loader")[0].kill()
        poll_for(lambda: len(events(cluster, "recovered")) == 1, LIMIT_S, "another process of the data loader")
        assert len(before & {each.pid for each in cluster.replicas()}) == 6
        poll_for(lambda: events(cluster, "saved"), LIMIT_S, "a checkpoint")
        cluster.supervisors("launch-role embedding-server --index 1")[0].kill()
        assert wait_for(process, log) == 0
    said = log.read_text()
    job = cluster.seen(RUN) / "driver" / "driver.log"
    assert "the job goes on from the checkpoint of step" in job.read_text()
    assert "metrics.jsonl" in said
    wait_until_empty(cluster)


def test_a_job_outlives_its_command_and_goes_on_after_its_time(cluster: SlurmCluster, tmp_path: Path) -> None:
    log = tmp_path / "said"
    with store_on(cluster.hosts[1]):
        saved = f"checkpoint.path='{free_store(cluster.hosts[1], 'queued')}'"
        first = start(cluster, log, *WORDS, *LOGGED, *ON_SLURM, saved, "dataset.generator.train_rows=640000")
        cluster.wait_for_training(RUN, log)
        first.send_signal(signal.SIGINT)
        assert wait_for(first, log) == 130
        assert f"the job goes on: persia attach {RUN}" in log.read_text()
        [job] = cluster.jobs()
        attached = cluster.start(*PERSIA, "attach", RUN, log=tmp_path / "attached")
        cluster.slurm("scancel", "--batch", "--signal=USR1", job)  # as Slurm does before the end of the time
        poll_for(lambda: cluster.jobs().get(job) == "PENDING", LIMIT_S, "the job to be queued again")
        assert not cluster.supervisors()
        assert not (cluster.seen(RUN) / COORDINATOR_ADDRESS).exists()
        [saved_event] = events(cluster, "saved")
        poll_for(lambda: events(cluster, "began") and not events(cluster, "saved"), LIMIT_S, "the next start")
        poll_for(lambda: cluster.jobs().get(job) == "RUNNING" and events(cluster, "ready"), LIMIT_S, "training again")
        code, said = cluster.run(*PERSIA, "stop", RUN, within_s=LIMIT_S)
        assert (code, "everything is stopped; the model is saved in" in said) == (75, True), said
        assert wait_for(attached, tmp_path / "attached") == 75
        assert "everything is stopped; the model is saved in" in (tmp_path / "attached").read_text()
        [again] = events(cluster, "saved")
        assert again["step"] > saved_event["step"]
        wait_until_empty(cluster)
        more = trained(cluster) + 200
        code, said = cluster.run(*PERSIA, "resume", RUN, f"train.steps={more}", within_s=LIMIT_S)
        assert (code, "metrics.jsonl" in said) == (0, True), said
    there = [line["step"] for line in read_journal(cluster.seen(RUN) / METRICS) if line["split"] == "train"]
    assert there == sorted(set(there))
    words = [*WORDS, *TWO, *NO_FILES, "dataset.generator.train_rows=640000", f"train.steps={more}", "cluster=local"]
    here = train(words, tmp_path / "here")
    assert evaluation(result_of(cluster.seen(RUN)))["auc"] == evaluation(here)["auc"]
    wait_until_empty(cluster)


def test_a_job_that_loses_a_machine_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "said"
    with lab(3) as hosts, cluster_on(hosts) as cluster, store_on(hosts[0]):
        words = [*WORDS, *LOGGED, *ON_SLURM, f"checkpoint.path='{free_store(hosts[0], 'lost')}'"]
        more = ["checkpoint.every_steps=500", "dataset.generator.train_rows=96000", "cluster.silence_timeout_s=15"]
        process = start(cluster, log, *words, *more)
        poll_for(lambda: events(cluster, "saved"), LIMIT_S, "a checkpoint")
        hosts[1].kill()
        assert wait_for(process, log) == 0
        said = (cluster.seen(RUN) / "driver" / "driver.log").read_text()
        assert "are lost: host2: the job is queued again" in said
        [ready] = events(cluster, "ready")
        assert "host3" in str(ready["replicas"])


def test_a_run_at_a_uri_goes_on_from_there_alone(cluster: SlurmCluster, tmp_path: Path) -> None:
    log, (first, second) = tmp_path / "said", cluster.hosts
    words = [*WORDS, "dataset.generator.train_rows=64000"]
    with store_on(second):
        uri = free_store(second, "away")
        begun = ["train", *words, "cluster=embedded", "train.steps=200", "--run-dir", uri]
        with (tmp_path / "begun").open("wb") as said:
            code = second.start([*IN_TMP, *begun], said, ENVIRONMENT).wait(LIMIT_S)
        assert code == 0, (tmp_path / "begun").read_text()
        process = cluster.start(*IN_TMP, "resume", uri, *ON_SLURM, "train.steps=400", log=log)
        assert wait_for(process, log) == 0
    [run_dir] = (first.root / "tmp/runs").iterdir()
    straight = train([*words, *NO_FILES, "cluster=embedded", "train.steps=400"], tmp_path / "straight")
    assert losses(result_of(run_dir)) == losses(straight)

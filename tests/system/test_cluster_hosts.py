"""`cluster=hosts`: one command trains on several machines, which ssh reaches and which share nothing."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from persia_cli.config.words import quoted
from persia_cli.engines.job import JobResult, result_of
from persia_cli.engines.key_files import KEY_FILE
from persia_cli.engines.running import words_of
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.wire.secret import new_keys, write_keys
from tests.conftest import poll_for
from tests.support.full_disk import leave_free
from tests.support.host_job import NO_FILES
from tests.support.hosts import CACHE, Host, lab, needs_hosts
from tests.support.jobs import CRITEO_FFNN, evaluation, losses, train
from tests.support.launched import Launched
from tests.support.s3 import SECRET, store_on
from tests.support.secrecy import leaks_in_files, leaks_in_processes
from tests.support.small import WORDS
from tests.support.ssh import PERSIA, on_hosts, stand_in
from tests.support.sshd import needs_sshd, served_by_ssh

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_hosts, pytest.mark.timeout(600)]

LIMIT_S = 240.0
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
SMALL = [*WORDS, *NO_FILES]
OTHERS = {"embedding-server", "embedding-worker", "data-loader", "nn-worker"}
ENDLESS = [*SMALL, "dataset.generator.train_rows=1000000000", "train.log_every_steps=5"]


@pytest.fixture
def hosts(criteo_rows: Path) -> Iterator[list[Host]]:
    with lab(3, shown=[criteo_rows]) as made:
        yield made


@pytest.fixture
def ssh(hosts: list[Host], tmp_path: Path) -> Path:
    return stand_in(tmp_path, hosts)


def wait_for_training(launched: Launched) -> None:
    metrics = launched.run_dir / METRICS
    poll_for(lambda: read_journal(metrics) or launched.process.poll() is not None, LIMIT_S, "steps trained")
    assert launched.process.poll() is None, launched.output


def processes_of(hosts: list[Host]) -> list[psutil.Process]:
    """The processes of Persia on these hosts, those that ssh serves included."""
    found = [child for host in hosts for child in psutil.Process(host.pid).children(recursive=True)]
    return [process for process in found if "persia_cli" in " ".join(process.cmdline())]


def test_a_job_over_three_hosts_has_the_bits_of_one_on_this_machine(
    criteo_rows: Path, hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    size = ["train.steps=20", "train.batch_size=128", "model.hidden=[16]", "train.log_every_steps=1"]
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "mode=sync", *size, *CLUSTER, *NO_FILES]
    keys = new_keys()
    write_keys(tmp_path / "own.keys", keys)
    own = {KEY_FILE: str(tmp_path / "own.keys")}
    with Launched([*words, *on_hosts(ssh, hosts)], tmp_path / "away", own) as launched:
        wait_for_training(launched)
        assert not list(leaks_in_processes(keys, [*processes_of(hosts), psutil.Process(launched.process.pid)]))
        code, _ = launched.end(LIMIT_S)
        assert code == 0, launched.output
    here: JobResult = train([*words, "cluster=local"], tmp_path / "here")
    there = result_of(tmp_path / "away")
    assert losses(there) == losses(here)
    assert evaluation(there)["auc"] == evaluation(here)["auc"]
    [ready] = [event for event in there.events if event["event"] == "ready"]
    assert {each["name"]: each["host"] for each in ready["replicas"]} == {
        "coordinator-0": "host1",
        "embedding-server-0": "host2",
        "embedding-server-1": "host3",
        "embedding-worker-0": "host2",
        "embedding-worker-1": "host3",
        "data-loader-0": "host1",
        "nn-worker-0": "host1",
    }
    logs = {path.stem: path.read_text() for path in (tmp_path / "away" / "roles").iterdir()}
    assert len(logs) == 7
    assert all(keys.fingerprint in text for text in logs.values())
    assert leaks_in_files(keys, [tmp_path / "away", *(host.root / "tmp" for host in hosts)]) == []
    poll_for(lambda: not processes_of(hosts), 10.0, "the end of all processes on the hosts")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["cluster.hosts=[host1,host9]"], 2, "host9 is not reached by ssh: ssh: Could not resolve hostname host9"),
        (["cluster.persia=/opt/persia"], 2, "host1 does not find Persia by `/opt/persia`: "),
        (["cluster.persia='/usr/bin/env python3 -I -S -m persia_cli'"], 2, "No module named persia_cli"),
        (["checkpoint.at_end=true"], 2, "set checkpoint.path to a URI that all reach"),
    ],
)
def test_what_cannot_start_is_said_in_a_sentence_and_leaves_nothing(
    words: list[str], code: int, sentence: str, hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    with Launched([*SMALL, *on_hosts(ssh, hosts), *words], tmp_path / "run") as launched:
        assert launched.end(LIMIT_S)[0] == code, launched.output
    assert sentence in launched.output
    assert "Traceback" not in launched.output
    poll_for(lambda: not processes_of(hosts), 10.0, "the end of all processes on the hosts")


def test_a_worker_that_dies_is_replaced_and_a_server_that_dies_by_its_own_fault_takes_the_job_back(
    hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    with Launched([*ENDLESS, *on_hosts(ssh, hosts)], tmp_path / "run") as launched:
        wait_for_training(launched)
        killed(hosts, "embedding-worker")
        events = launched.run_dir / EVENTS
        poll_for(lambda: [e for e in read_journal(events) if e["event"] == "recovered"], LIMIT_S, "a new worker")
        assert launched.process.poll() is None, launched.output
        killed(hosts, "embedding-server", signal.SIGSEGV)
        poll_for(lambda: "the job goes on from its start" in launched.output, LIMIT_S, "the rollback")
        since, metrics = time.time(), launched.run_dir / METRICS
        poll_for(lambda: any(line["time"] > since for line in read_journal(metrics)), LIMIT_S, "training after it")
        launched.process.send_signal(signal.SIGINT)
        assert launched.end(LIMIT_S)[0] == 130, launched.output
    assert "embedding-server-0 on host2" in launched.output
    poll_for(lambda: not processes_of(hosts), 10.0, "the end of all processes on the hosts")


def test_a_job_outlives_its_command_and_others_find_it_end_it_and_go_on(
    hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    steps = ["dataset.generator.train_rows=640000", "train.log_every_steps=50"]
    with store_on(hosts[2]) as saved:
        away = [*WORDS, *steps, *on_hosts(ssh, hosts), f"checkpoint.path='{saved}'"]
        with Launched(away, run) as launched:
            wait_for_training(launched)
            roles = [process for process in processes_of(hosts) if "launch-role" in process.cmdline()]
            launched.process.kill()
            launched.process.wait()
        said = persia("logs", str(run), "nn-worker-0")
        assert (said.returncode, "nn-worker-0" in said.stdout) == (0, True), said.stderr
        again = persia("resume", str(run))
        assert (again.returncode, "still runs; persia attach" in again.stderr) == (2, True), again.stderr
        with (tmp_path / "attached.out").open("wb") as output:
            command = [sys.executable, "-m", "persia_cli", "attach", str(run)]
            attached = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            many = len(read_journal(run / METRICS))
            poll_for(lambda: len(read_journal(run / METRICS)) > many + 1, LIMIT_S, "more figures")
            attached.send_signal(signal.SIGHUP)  # its terminal is gone
            assert attached.wait(30.0) == 130, (tmp_path / "attached.out").read_text()
        finally:
            attached.kill()
            attached.wait()
        assert all(process.is_running() for process in roles)
        ended = persia("stop", str(run))
        assert ended.returncode == 75, ended.stderr
        assert f"persia resume {run} goes on from there" in ended.stderr
        poll_for(lambda: not processes_of(hosts[:2]), 10.0, "the end of all processes on the hosts")
        trained = max(line["step"] for line in read_journal(run / METRICS))
        resumed = persia("resume", str(run), f"train.steps={trained + 200}", f"checkpoint.path='{saved}'")
        assert resumed.returncode == 0, resumed.stderr
        poll_for(lambda: not processes_of(hosts[:2]), 10.0, "the end of all processes on the hosts")
    everywhere = [run, *(host.root / "tmp" / "persia-jobs" for host in hosts[:2])]
    files = [path for folder in everywhere for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    here = train([*WORDS, *steps, *NO_FILES, f"train.steps={trained + 200}", "cluster=local"], tmp_path / "here")
    assert evaluation(result_of(run))["auc"] == evaluation(here)["auc"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_signals_end_the_job_as_on_one_machine(
    number: signal.Signals, code: int, hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    with store_on(hosts[2]) as saved:
        away = [*ENDLESS, *on_hosts(ssh, hosts), "checkpoint.at_end=true", f"checkpoint.path='{saved}'"]
        with Launched(away, tmp_path / "run") as launched:
            wait_for_training(launched)
            launched.process.send_signal(number)
            assert launched.end(LIMIT_S)[0] == code, launched.output
    assert "everything is stopped" in launched.output
    assert ("persia resume" in launched.output) == (number == signal.SIGTERM)
    assert not processes_of(hosts)


SLOW = f"sh -c 'case $1 in launch-role) sleep 5; touch /tmp/$4.begins;; esac; exec {PERSIA} \"$@\"' persia"
"""Persia on a machine that takes its time to start a replica."""


@pytest.mark.parametrize(
    ("at", "awaited"),
    [("coordinator-0 on host1", {"coordinator"}), ("4 other replicas", OTHERS)],
    ids=["coordinator", "others"],
)
def test_what_was_on_its_way_when_a_start_was_interrupted_is_ended_or_never_started(
    at: str, awaited: set[str], hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    words = [*ENDLESS, *on_hosts(ssh, hosts[:1]), f"cluster.persia={quoted(SLOW)}"]
    with Launched(words, tmp_path / "run") as launched:
        poll_for(lambda: at in launched.output or launched.process.poll(), LIMIT_S, at)
        poll_for(lambda: len(starting(launched)) == len(awaited), 60.0, "the commands that start them")
        # As Ctrl-C in a terminal does: ssh ends too, and what it has started goes on.
        for process in [*starting(launched), launched.process]:
            process.send_signal(signal.SIGINT)
        assert launched.end(LIMIT_S)[0] == 130, launched.output
    assert "it is not known" not in launched.output
    temporary = hosts[0].root / "tmp"
    poll_for(lambda: {path.stem for path in temporary.glob("*.begins")} >= awaited, LIMIT_S, "what was on its way")
    poll_for(lambda: not processes_of(hosts), 30.0, "the end of what is not to be started")
    [folder] = (temporary / "persia-jobs").glob("*/start-1")
    started = {path.stem.removesuffix("-0") for path in folder.glob("*.process")}
    assert started | {path.stem.removesuffix("-0") for path in folder.glob("*.cancelled")} >= awaited
    assert ("coordinator" in started) == (tmp_path / "run").exists() == (awaited == OTHERS)


def starting(launched: Launched) -> list[psutil.Process]:
    """The commands that start a replica each."""
    found = psutil.Process(launched.process.pid).children()
    return [process for process in found if "launch-role" in " ".join(words_of(process.pid))]


def killed(hosts: list[Host], role: str, how: signal.Signals = signal.SIGKILL) -> None:
    """Kill the process of a role, but not its supervisor."""
    found = [process for process in processes_of(hosts) if role in process.cmdline() and "--life" in process.cmdline()]
    assert len(found) == 1
    found[0].send_signal(how)


def persia(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "persia_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


@needs_sshd
def test_real_ssh_starts_and_follows_a_job(hosts: list[Host], tmp_path: Path) -> None:
    *machines, user = hosts
    persia = f"env HOME=/tmp TMPDIR=/tmp NUMBA_CACHE_DIR={CACHE} {PERSIA}"
    with served_by_ssh(machines, user, tmp_path) as ssh:
        away = ["cluster=hosts", f"cluster.hosts=[{','.join(host.address for host in machines)}]"]
        away += [f"cluster.ssh='{ssh}'", f"cluster.persia='{persia}'", "cluster.folder=/tmp/jobs"]
        with Launched([*SMALL, *away], tmp_path / "run") as launched:
            assert launched.end(LIMIT_S)[0] == 0, launched.output
        [ready] = [event for event in read_journal(tmp_path / "run" / EVENTS) if event["event"] == "ready"]
        assert {each["host"] for each in ready["replicas"]} == {"host1", "host2"}
        poll_for(lambda: not processes_of(hosts), 10.0, "the end of all processes on the hosts")


@needs_sshd
def test_ssh_that_would_ask_or_that_hangs_ends_the_command_with_the_machine_and_the_words_of_ssh(
    hosts: list[Host], tmp_path: Path
) -> None:
    *machines, user = hosts
    first = machines[0]
    with served_by_ssh(machines, user, tmp_path) as ssh:
        silent = first.start([sys.executable, "-c", SILENT])
        try:
            poll_for(lambda: "2222" in first.run(["ss", "-ltnH"])[1], LIMIT_S, "a server that says nothing")
            for changed, said in (
                (ssh.replace("StrictHostKeyChecking=no", "StrictHostKeyChecking=ask"), "Host key verification failed"),
                (ssh.replace(f"-i {tmp_path / 'user'}", "-i /dev/null -o IdentitiesOnly=yes"), "Permission denied"),
                (f"{ssh} -p 2222", ""),
            ):
                assert changed != ssh
                away = ["cluster=hosts", f"cluster.hosts=[{first.address}]", f"cluster.ssh='{changed}'"]
                with Launched([*SMALL, *away], tmp_path / "run") as launched:
                    assert launched.end(60.0)[0] == 2, launched.output
                assert f"error: {first.address} is not reached by ssh: " in launched.output
                assert said in launched.output
                assert "has to work unasked" in launched.output
                assert not launched.run_dir.exists()
        finally:
            silent.kill()


SILENT = "import socket, time; s = socket.create_server(('', 2222)); time.sleep(600)"


def test_two_jobs_share_machines_one_of_whose_disks_is_full_and_folders_may_have_any_name(
    hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    disk = hosts[1].root / "tmp" / "persia-jobs"
    disk.mkdir()
    assert hosts[1].run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/tmp/persia-jobs"])[0] == 0
    away = [*SMALL, "dataset.generator.train_rows=64000", *on_hosts(ssh, hosts)]
    with (
        Launched(away, tmp_path / "-it's $HOME; x") as odd,
        Launched([*away, "seed=2"], tmp_path / "größer als\u3000zwei") as other,
    ):
        for job in (odd, other):
            wait_for_training(job)
        leave_free(disk, 0)
        for job in (odd, other):
            assert job.end(LIMIT_S)[0] == 0, job.output
    poll_for(lambda: not processes_of(hosts), 10.0, "the end of all processes on the hosts")
    with Launched(away, tmp_path / "late") as late:
        assert late.end(LIMIT_S)[0] == 2, late.output
    assert "on host2: disk full: cannot write " in late.output
    poll_for(lambda: not processes_of(hosts), 10.0, "the end of all processes on the hosts")
    assert evaluation(result_of(odd.run_dir))["auc"] != evaluation(result_of(other.run_dir))["auc"]
    here = train([*SMALL, "dataset.generator.train_rows=64000", "cluster=local"], tmp_path / "here")
    assert evaluation(result_of(odd.run_dir))["auc"] == evaluation(here)["auc"]
    said = persia("logs", str(odd.run_dir), "nn-worker-0")
    assert (said.returncode, "nn-worker-0" in said.stdout) == (0, True), said.stderr
    again = persia("stop", str(odd.run_dir))
    assert (again.returncode, "has ended; its log says how" in again.stderr) == (2, True), again.stderr

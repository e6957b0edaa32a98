"""`cluster=hosts`: one command trains on several machines, which ssh reaches and which share nothing."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.engines.key_files import KEY_FILE
from persia_cli.loggers.logger import TENSORBOARD
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.wire.secret import new_keys, write_keys
from tests.conftest import poll_for
from tests.support.host_job import NO_FILES, spread, started_on
from tests.support.hosts import Host, argv_of, lab, needs_hosts, processes_on
from tests.support.jobs import CRITEO_FFNN, evaluation, losses, train
from tests.support.launched import Launched
from tests.support.logged import in_tensorboard
from tests.support.s3 import SECRET, store_on
from tests.support.secrecy import leaks_in_files, leaks_in_processes
from tests.support.small import WORDS
from tests.support.ssh import needs_sshd, on_hosts, ssh_between

pytestmark = [pytest.mark.slow, needs_hosts, needs_sshd, pytest.mark.timeout(600)]

LIMIT_S = 240.0
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
SMALL = [*WORDS, *NO_FILES]
ENDLESS = [*SMALL, "dataset.generator.train_rows=1000000000", "train.log_every_steps=5"]


@pytest.fixture
def hosts(criteo_rows: Path) -> Iterator[list[Host]]:
    with lab(3, shown=[criteo_rows]) as made:
        yield made


@pytest.fixture
def ssh(hosts: list[Host], tmp_path: Path) -> Iterator[Path]:
    with ssh_between(tmp_path, hosts) as made:
        yield made


def wait_for_training(launched: Launched) -> None:
    poll_for(
        lambda: "training  step" in launched.output or launched.process.poll() is not None, LIMIT_S, "steps trained"
    )
    assert launched.process.poll() is None, launched.output


def processes_of(hosts: list[Host]) -> list[psutil.Process]:
    """The processes of Persia on these hosts, those that ssh serves included."""
    return [each for host in hosts for each in processes_on(host) if "persia_cli" in argv_of(each)]


def test_a_job_over_three_hosts_has_the_bits_of_one_on_this_machine(
    criteo_rows: Path, hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    size = ["train.steps=20", "train.batch_size=128", "model.hidden=[16]", "train.log_every_steps=1"]
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "mode=sync", *size, *CLUSTER, *NO_FILES]
    keys = new_keys()
    write_keys(tmp_path / "own.keys", keys)
    own = {KEY_FILE: str(tmp_path / "own.keys")}
    with Launched([*words, *on_hosts(ssh, hosts), "loggers=[tensorboard]"], tmp_path / "away", own) as launched:
        wait_for_training(launched)
        assert not list(leaks_in_processes(keys, [*processes_of(hosts), psutil.Process(launched.process.pid)]))
        code, _ = launched.end(LIMIT_S)
        assert code == 0, launched.output
    here: JobResult = train([*words, "cluster=local"], tmp_path / "here")
    there = result_of(tmp_path / "away")
    assert losses(there) == losses(here)
    assert [step for step, _ in in_tensorboard(tmp_path / "away" / TENSORBOARD)["train/loss"]] == [*range(1, 21)]
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
        (["cluster.hosts=[host9,host1]"], 2, "host9 is not reached by ssh: ssh: Could not resolve hostname host9"),
        (["cluster.persia=/opt/persia"], 2, "host1 does not find Persia by `/opt/persia`: "),
        (["checkpoint.at_end=true"], 2, "set checkpoint.path to a URI that all reach"),
    ],
)
def test_a_failed_start_is_reported_in_a_sentence_and_leaves_nothing(
    words: list[str], code: int, sentence: str, hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    with Launched([*SMALL, *on_hosts(ssh, hosts), *words], tmp_path / "run") as launched:
        assert launched.end(LIMIT_S)[0] == code, launched.output
    assert sentence in launched.output
    assert "Traceback" not in launched.output
    poll_for(lambda: not processes_of(hosts), 10.0, "the end of all processes on the hosts")


def test_a_worker_that_dies_is_replaced_and_other_deaths_take_the_job_back(
    hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    with store_on(hosts[2]) as saved:
        words = [*ENDLESS, *on_hosts(ssh, hosts), f"checkpoint.path='{saved}'", "checkpoint.every_steps=200"]
        with Launched(words, tmp_path / "run") as launched:
            events = hosts[0].root / "tmp/persia-jobs" / launched_folder(hosts[0]) / EVENTS
            poll_for(lambda: "saved" in kinds(events) or launched.process.poll() is not None, LIMIT_S, "a checkpoint")
            assert launched.process.poll() is None, launched.output
            killed(hosts, "embedding-worker")
            poll_for(lambda: "recovered" in kinds(events), LIMIT_S, "a new worker")
            assert "the job goes on" not in launched.output
            killed(hosts, "embedding-server", signal.SIGSEGV)
            poll_for(lambda: went_back(launched, events, 1), LIMIT_S, "the rollback after a fault of a server")
            connection_of(hosts[0], "embedding-server").kill()
            poll_for(lambda: went_back(launched, events, 2), LIMIT_S, "the rollback after a lost connection")
            killed(hosts, "nn-worker")
            poll_for(lambda: went_back(launched, events, 3), LIMIT_S, "the rollback after the death of an NN worker")
            launched.process.send_signal(signal.SIGINT)
            assert launched.end(LIMIT_S)[0] == 130, launched.output
    assert "embedding-server-0 on host2" in launched.output
    poll_for(lambda: not processes_of(hosts), 10.0, "the end of all processes on the hosts")


def launched_folder(first: Host) -> str:
    """The folder of the only run on the first host, once it is there."""
    jobs = first.root / "tmp/persia-jobs"
    poll_for(lambda: jobs.exists() and list(jobs.iterdir()), LIMIT_S, "a run directory on the first host")
    [folder] = jobs.iterdir()
    return folder.name


def kinds(events: Path) -> list[str]:
    return [event["event"] for event in read_journal(events)]


def went_back(launched: Launched, events: Path, times: int) -> bool:
    """Return True if the job has returned to a checkpoint so many times, and trains again."""
    assert launched.process.poll() is None, launched.output
    earlier = events.parent / "earlier" / ("start" if times == 1 else f"start-{times}")
    return earlier.exists() and "recovered" in kinds(events)


def connection_of(first: Host, role: str) -> psutil.Process:
    """The process of ssh on the first host by which the driver has started a replica."""

    def found() -> list[psutil.Process]:
        return [each for each in processes_on(first) if argv_of(each)[:1] == ["ssh"] and role in argv_of(each)[-1]]

    poll_for(found, LIMIT_S, f"the connection of {role}")
    return found()[0]


def test_a_job_outlives_its_command_and_others_find_it_end_it_and_go_on(
    hosts: list[Host], ssh: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    steps = ["dataset.generator.train_rows=640000", "train.log_every_steps=50"]
    with store_on(hosts[2]) as saved:
        away = [*WORDS, *steps, *on_hosts(ssh, hosts), f"checkpoint.path='{saved}'"]
        with Launched(away, run) as launched:
            wait_for_training(launched)
            roles = [process for process in processes_of(hosts) if "launch-role" in argv_of(process)]
            launched.process.kill()
            launched.process.wait()
        said = persia("logs", str(run), "nn-worker-0")
        assert (said.returncode, "nn-worker-0" in said.stdout) == (0, True), said.stderr
        again = persia("resume", str(run))
        assert (again.returncode, f"the run in {run} still goes on" in again.stderr) == (2, True), again.stderr
        with (tmp_path / "attached.out").open("wb") as output:
            command = [sys.executable, "-m", "persia_cli", "attach", str(run)]
            attached = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            said_by_attach = tmp_path / "attached.out"
            poll_for(lambda: said_by_attach.read_text().count("training  step") > 1, LIMIT_S, "more metrics")
            attached.send_signal(signal.SIGHUP)  # its terminal was closed
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


def test_all_ends_with_the_driver_and_the_run_can_be_resumed(hosts: list[Host], ssh: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with store_on(hosts[2]) as saved:
        words = [*ENDLESS, *on_hosts(ssh, hosts), f"checkpoint.path='{saved}'", "checkpoint.every_steps=100"]
        with Launched(words, run) as launched:
            wait_for_training(launched)
            poll_for(lambda: "saved     " in launched.output, LIMIT_S, "a checkpoint")
            [driver] = [process for process in processes_of(hosts) if "drive" in argv_of(process)]
            driver.kill()
            assert launched.end(LIMIT_S)[0] == 1, launched.output
        assert "the driver of the job was killed" in launched.output
        poll_for(lambda: not processes_of(hosts), 30.0, "the end of all processes on the hosts")
        trained = max(line["step"] for line in read_journal(run / METRICS))
        resumed = persia("resume", str(run), f"train.steps={trained + 100}", f"checkpoint.path='{saved}'")
        assert resumed.returncode == 0, resumed.stderr
        assert result_of(run).metrics[-1]["step"] == trained + 100


def killed(hosts: list[Host], role: str, how: signal.Signals = signal.SIGKILL) -> None:
    """Kill the process of a role, but not its supervisor."""

    def found() -> list[psutil.Process]:
        return [each for each in processes_of(hosts) if {role, "--incarnation"} <= {*argv_of(each)}]

    poll_for(lambda: len(found()) == 1, LIMIT_S, f"the only {role}")
    found()[0].send_signal(how)


def persia(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "persia_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


LONG = [*WORDS, *CLUSTER, "dataset.generator.train_rows=128000"]
"""4,000 steps, so that it is not over when a machine is cut off."""


@pytest.fixture(scope="module")
def undisturbed(trained: Callable[..., JobResult]) -> JobResult:
    return trained(*LONG, *NO_FILES, "cluster=local")


@pytest.fixture
def four() -> Iterator[list[Host]]:
    with lab(4) as made:
        yield made


def test_a_host_cut_off_for_ten_seconds_changes_nothing(
    undisturbed: JobResult, four: list[Host], tmp_path: Path
) -> None:
    with started_on(spread(four), [*LONG, *NO_FILES], tmp_path / "logs") as job:
        job.wait_for_training()
        four[2].down()
        steps = still_after(job.run_dir / METRICS, 10.0)
        four[2].up()
        result = job.result()
    assert steps < 4000, "the job was over before its host was cut off"
    assert losses(result) == losses(undisturbed)
    assert evaluation(result)["auc"] == evaluation(undisturbed)["auc"]


def still_after(metrics: Path, seconds: float) -> int:
    """Return the step that a job stands at after so many seconds."""
    until = time.monotonic() + seconds
    poll_for(lambda: time.monotonic() > until, 2 * seconds, "the end of the time without a network")
    return last_step(metrics)


@pytest.mark.parametrize("is_lost", [False, True], ids=["for_longer_than_others_wait", "for_good"])
def test_a_job_goes_back_to_its_checkpoint_when_a_host_is_cut_off(
    is_lost: bool, undisturbed: JobResult, four: list[Host], tmp_path: Path
) -> None:
    *machines, user = four
    with store_on(user) as saved, ssh_between(tmp_path, machines) as ssh:
        away = [*LONG, *on_hosts(ssh, machines), "cluster.silence_timeout_s=10"]
        away += [f"checkpoint.path='{saved}'", "checkpoint.every_steps=500", "checkpoint.at_end=false"]
        with Launched(away, tmp_path / "run") as launched:
            poll_for(lambda: "saved     " in launched.output or launched.process.poll(), LIMIT_S, "a checkpoint")
            (four[2].kill if is_lost else four[2].down)()
            poll_for(lambda: "goes on from the" in launched.output or launched.process.poll(), LIMIT_S, "a rollback")
            if not is_lost:
                four[2].up()
            assert launched.end(LIMIT_S)[0] == 0, launched.output
    assert ("the job goes on without host3" in launched.output) or not is_lost
    result = result_of(launched.run_dir)
    assert losses(result) == losses(undisturbed)
    assert evaluation(result)["auc"] == evaluation(undisturbed)["auc"]
    assert [event for event in result.events if event["event"] == "recovered"]
    alive = machines[:2] if is_lost else machines
    poll_for(lambda: not roles(alive), 60.0, "the end of all processes on the hosts")


def last_step(metrics: Path) -> int:
    return int(read_journal(metrics)[-1]["step"])


SAVING = [*WORDS, *CLUSTER, "dataset.generator.train_rows=1000000000", "train.log_every_steps=5"]


def roles(hosts: list[Host], role: str = "launch-role") -> list[psutil.Process]:
    """The processes of roles on these hosts, or of one role."""
    found = [each for host in hosts for each in processes_on(host)]
    return [each for each in found if {"persia_cli", "launch-role", role} <= {*argv_of(each)}]


def test_a_job_is_stopped_while_it_goes_back_to_its_checkpoint(hosts: list[Host], tmp_path: Path) -> None:
    *machines, third = hosts
    run, moment = tmp_path / "run", "the job goes on from"
    with store_on(third) as saved, ssh_between(tmp_path, machines) as ssh:
        away = [*SAVING, *on_hosts(ssh, machines), f"checkpoint.path='{saved}'"]
        with Launched([*away, "checkpoint.every_steps=100"], run) as launched:
            poll_for(lambda: "saved     " in launched.output or launched.process.poll(), LIMIT_S, "a checkpoint")
            for process in roles(machines, "embedding-server"):
                if "--attached" in argv_of(process):
                    process.kill()
            poll_for(lambda: moment in launched.output or launched.process.poll(), LIMIT_S, moment)
            stopped = persia("stop", str(run))
            assert launched.end(60.0)[0] == 75, launched.output
        assert stopped.returncode == 75, stopped.stderr
        for said in (stopped.stderr, launched.output):
            assert f"persia resume {run} goes on from there" in said
        poll_for(lambda: not roles(hosts), 10.0, "the end of all roles")
        steps = max(line["step"] for line in read_journal(run / METRICS)) + 200
        resumed = persia("resume", str(run), f"train.steps={steps}", f"checkpoint.path='{saved}'")
        assert resumed.returncode == 0, resumed.stderr
        assert result_of(run).metrics[-1]["step"] == steps

"""A run whose directory is at a URI goes on from there alone, on a machine that has nothing of it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from tests.conftest import poll_for
from tests.support.hosts import Host, lab, needs_hosts
from tests.support.jobs import losses, train
from tests.support.s3 import SECRET, store_on
from tests.support.small import WORDS
from tests.support.ssh import on_hosts, stand_in

pytestmark = [pytest.mark.slow, needs_hosts, pytest.mark.timeout(600)]

LIMIT_S = 240.0
PERSIA = ["/bin/sh", "-c", 'cd /tmp && exec "$@"', "sh", sys.executable, "-m", "persia_cli"]
EVERY = 100
TRAINED = [*WORDS, "dataset.generator.train_rows=1000000000"]
ENDLESS = [*TRAINED, f"checkpoint.every_steps={EVERY}", "checkpoint.keep=3"]


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with lab(3) as made:
        yield made


@pytest.fixture
def uri(hosts: list[Host]) -> Iterator[str]:
    with store_on(hosts[0]) as address:
        yield address


def run_dir_on(host: Host) -> Path:
    """The newest run directory in the folder in which a host's commands run, but for copies of records."""
    found = [path for path in (host.root / "tmp/runs").iterdir() if "-copy-" not in path.name]
    return max(found, key=lambda path: path.name)


@contextmanager
def begun(host: Host, uri: str, cluster: str) -> Iterator[Path]:
    """Train on a host, to be killed with it, until there are two checkpoints at the URI; yield the run directory."""
    with (host.root / "tmp/said").open("wb") as said:
        process = host.start([*PERSIA, "train", *ENDLESS, f"cluster={cluster}", "--run-dir", uri], said)

        def saved() -> bool:
            assert process.poll() is None, (host.root / "tmp/said").read_text()
            try:
                return steps_saved(run_dir_on(host))[-1:] >= [2 * EVERY]
            except (FileNotFoundError, ValueError):
                return False

        poll_for(saved, LIMIT_S, "two checkpoints")
        yield run_dir_on(host)
        process.kill()


def steps_saved(run_dir: Path) -> list[int]:
    return [event["step"] for event in read_journal(run_dir / EVENTS) if event["event"] == "saved"]


def result_in(run_dir: Path) -> JobResult:
    return JobResult(run_dir, read_journal(run_dir / METRICS), read_journal(run_dir / EVENTS))


def test_a_run_goes_on_where_nothing_is_left_of_its_machine(hosts: list[Host], uri: str, tmp_path: Path) -> None:
    _, lost, other = hosts
    with begun(lost, uri, "embedded") as run_dir:
        before = steps_saved(run_dir)[-1]
        lost.kill()
    steps = before + 4 * EVERY
    code, said = other.run([*PERSIA, "runs", "ls", uri], LIMIT_S)
    assert code == 0, said
    assert "state=running" in said or "state=silent" in said
    code, said = other.run([*PERSIA, "resume", uri, f"train.steps={steps}"], LIMIT_S)
    assert code == 0, said
    assert SECRET not in said
    straight = train([*TRAINED, "cluster=embedded", f"train.steps={steps}"], tmp_path / "straight")
    resumed = result_in(run_dir_on(other))
    assert losses(resumed) == losses(straight)
    assert [line["step"] for line in resumed.metrics if line["split"] == "train"] == list(range(1, steps + 1))
    # All commands find it by its URI, also once this machine has it; a third one has a copy of the record.
    first = hosts[0]
    for host in (other, first):
        code, said = host.run([*PERSIA, "runs", "ls", uri], LIMIT_S)
        assert (code, "state=done" in said, SECRET in said) == (0, True, False), said
        code, said = host.run([*PERSIA, "eval", uri], LIMIT_S)
        assert (code, f"step={steps} " in said, SECRET in said) == (0, True, False), said
        code, said = host.run([*PERSIA, "report", uri, "-o", "/tmp/page.html"], LIMIT_S)
        assert (code, (host.root / "tmp/page.html").is_file(), SECRET in said) == (0, True, False), said
    assert [path.name.partition("-copy-")[0] for path in (first.root / "tmp/runs").iterdir()] == ["synthetic"]
    # A scheduler's command: all is done, wherever it is given.
    words = [*ENDLESS, "cluster=embedded", f"train.steps={steps}", "resume=auto", "--run-dir", uri]
    code, said = first.run([*PERSIA, "train", *words], LIMIT_S)
    assert (code, f"all {steps} steps of the run are done" in said) == (0, True), said
    assert len(list((first.root / "tmp/runs").iterdir())) == 1
    code, said = first.run([*PERSIA, "train", *words, f"train.steps={steps + EVERY}"], LIMIT_S)
    assert code == 0, said
    assert result_in(run_dir_on(first)).metrics[-1]["step"] == steps + EVERY
    code, said = other.run([*PERSIA, "resume", str(run_dir_on(other)).partition("root")[2], "train.steps=9999"])
    assert (code, "was taken over by /tmp/runs/synthetic-" in said) == (2, True), said


def test_the_machine_that_had_it_is_refused_when_it_starts_again(hosts: list[Host], uri: str, tmp_path: Path) -> None:
    _, former, other = hosts
    with begun(former, uri, "local") as run_dir:
        steps = steps_saved(run_dir)[-1] + 4 * EVERY
    code, said = other.run([*PERSIA, "resume", uri, "cluster=embedded", f"train.steps={steps}"], LIMIT_S)
    assert code == 0, said
    code, said = former.run([*PERSIA, "resume", str(run_dir).partition("root")[2]])
    assert (code, "was taken over by /tmp/runs/synthetic-" in said) == (2, True), said
    assert "; persia resume s3://models/saved continues from there" in said
    straight = train([*TRAINED, "cluster=embedded", f"train.steps={steps}"], tmp_path / "straight")
    assert losses(result_in(run_dir_on(other))) == losses(straight)
    code, said = other.run([*PERSIA, "checkpoint", "verify", str(run_dir_on(other)).partition("root")[2]], LIMIT_S)
    assert code == 0, said
    code, said = other.run([*PERSIA, "resume", uri, "cluster=embedded", f"train.steps={steps + EVERY}"], LIMIT_S)
    assert code == 0, said
    assert len(list((other.root / "tmp/runs").iterdir())) == 1


def test_a_run_of_several_machines_goes_on_on_others(hosts: list[Host], uri: str, tmp_path: Path) -> None:
    user, lost, other = hosts
    # One host at a time, so the stand-in for ssh will do.
    machines = on_hosts(stand_in(tmp_path, hosts), [lost])
    first, second = tmp_path / "first", tmp_path / "second"
    words = [*ENDLESS, *machines, "--run-dir", uri]
    with persia_of(user, first, "train", *words) as command:
        poll_for(lambda: saved_in(first) >= 2 or command.poll() is not None, LIMIT_S, "two checkpoints")
        assert command.poll() is None, (first / "said").read_text()[-4000:]
        steps = (saved_in(first) + 4) * EVERY
        lost.kill()
    with persia_of(user, second, "resume", uri, "cluster.hosts=[host3]", f"train.steps={steps}") as command:
        assert command.wait(LIMIT_S) == 0, (second / "said").read_text()[-4000:]
    said = (second / "said").read_text()
    assert "host3: coordinator-0" in said
    straight = train([*TRAINED, "cluster=embedded", f"train.steps={steps}"], tmp_path / "straight")
    [run_dir] = (second / "runs").iterdir()
    assert losses(result_in(run_dir)) == losses(straight)
    again = ["resume", str(run_dir), f"train.steps={steps + EVERY}", f"checkpoint.path='{uri}'"]
    with persia_of(user, second, *again) as command:
        assert command.wait(LIMIT_S) == 0, (second / "said").read_text()[-4000:]
    assert result_in(run_dir).metrics[-1]["step"] == steps + EVERY
    for folder in (first, second, other.root / "tmp/persia-jobs"):
        assert [path for path in folder.rglob("*") if has_secret(path)] == []


def has_secret(path: Path) -> bool:
    return path.is_file() and SECRET.encode() in path.read_bytes()


@contextmanager
def persia_of(user: Host, folder: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command in a folder of this machine, by the network of a host; kill it if it runs on."""
    folder.mkdir(exist_ok=True)
    enter = ["nsenter", f"--target={user.pid}", "--net", sys.executable, "-m", "persia_cli"]
    with (folder / "said").open("wb") as said:
        command = subprocess.Popen([*enter, *words], cwd=folder, stdout=said, stderr=said)
        try:
            yield command
        finally:
            command.kill()
            command.wait()


def saved_in(folder: Path) -> int:
    """Return the number of checkpoints that the command of a folder has shown."""
    return (folder / "said").read_text().count("saved     ")

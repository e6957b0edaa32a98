"""Machines and commands that are no use for a job on hosts are refused before anything starts."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from persia_cli.commands.follow import attach, stop
from persia_cli.commands.train import train
from persia_cli.config.compose import compose_run
from persia_cli.config.overrides import quoted
from persia_cli.config.schema import HostsCluster, SshHost
from persia_cli.data.read.facts import inspect
from persia_cli.engines.hosts import ssh as facts_module
from persia_cli.engines.hosts.engine import HostMachines, address_of, require_usable
from persia_cli.engines.hosts.placement import placement_of
from persia_cli.engines.hosts.ssh import HostFacts, ask, facts_of_host
from persia_cli.engines.local import Processes
from persia_cli.errors import ConfigError, RoleError, UserError
from persia_cli.plan.job import plan_job
from persia_cli.plan.pinning import MachineProcessors
from persia_cli.version import __version__

GIB = 2**30
RUN = compose_run(["cluster=hosts", "cluster.hosts=[a,b]", "embedding.memory=4GiB"])
PLACED = placement_of(RUN)
HOSTS = HostsCluster(kind="hosts", hosts=(SshHost(ssh="a"), SshHost(ssh="b")))
PROCESSORS = MachineProcessors("0-3", "0-7", {0: "0-3", 1: "4-7"})


A, B = SshHost(ssh="a"), SshHost(ssh="b")


def facts(**changed: object) -> dict[SshHost, HostFacts]:
    """Facts of both machines, those of b with changes."""
    usual = {"version": __version__, "memory": 8 * GIB, "processors": PROCESSORS}
    return {A: HostFacts(**usual), B: HostFacts(**usual | changed)}  # type: ignore[arg-type]


def test_too_little_memory_is_refused() -> None:
    require_usable(RUN, PLACED, facts())
    sentence = "b has 2.0 GiB of memory, and the rows of its embedding servers may take 4.2 GiB; lower"
    with pytest.raises(ConfigError, match=sentence):
        require_usable(RUN, PLACED, facts(memory=2 * GIB))


def answering(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "run_on", lambda *words: SimpleNamespace(stdout=text))


def test_another_version_is_refused_also_with_other_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ({"version": "9.9.9", "cores": 4}, asdict(facts(version="9.9.9")[B])):
        answering(json.dumps(answer), monkeypatch)
        with pytest.raises(ConfigError, match=r"^a has persia 9\.9\.9, and the first machine "):
            ask(HOSTS, A)
    answering("hello\n", monkeypatch)
    with pytest.raises(RoleError, match=r"a answers what persia .* does not: 'hello"):
        ask(HOSTS, A)


def test_after_a_death_machines_that_are_not_reached_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compose_run(["cluster=hosts", "cluster.hosts=[{ssh: a, address: 10.0.0.1},b,c]"])

    def asked(hosts: object, host: SshHost) -> HostFacts:
        if host.ssh == "b":
            raise RoleError("b is not reached")
        return facts_of_host()

    monkeypatch.setattr("persia_cli.engines.hosts.engine.ask", asked)
    said: list[str] = []
    with pytest.raises(RoleError, match="b is not reached"):
        HostMachines(run, leaves_out_lost=False).prepare(said.append, lambda: None)
    assert said == []
    HostMachines(run, leaves_out_lost=True).prepare(said.append, lambda: None)
    assert said[0] == "the job goes on without b"
    assert said[1].startswith("a: coordinator-0")
    assert {line.partition(":")[0] for line in said[1:]} == {"a", "c"}


def test_processors_that_a_machine_does_not_have_are_refused_by_its_name() -> None:
    words = ["cluster=hosts", "cluster.hosts=[a,b]", "cluster.pin={embedding_server: 'node:1', nn_worker: 3}"]
    run = compose_run(words)
    free = MachineProcessors("0-7", "0-7", {0: "0-3", 1: "4-7"})
    usable = facts(processors=free)
    require_usable(run, placement_of(run), usable)
    with pytest.raises(
        ConfigError, match=r"^cluster.pin.embedding_server=node:1 for embedding-server-0: .* of b, only"
    ):
        require_usable(run, placement_of(run), facts())


CONNECTION = "10.0.0.9 40000 {} 22"
"""SSH_CONNECTION of a process that ssh has started at an address."""


def test_the_coordinator_listens_where_ssh_or_the_user_reaches_it() -> None:
    assert address_of(A, CONNECTION.format("10.0.0.1"), is_alone=False) == "10.0.0.1"
    given = SshHost(ssh="a", address="10.9.9.9")
    assert address_of(given, CONNECTION.format("10.0.0.1"), is_alone=False) == "10.9.9.9"
    assert address_of(A, CONNECTION.format("127.0.0.1"), is_alone=True) == "127.0.0.1"


@pytest.mark.parametrize(
    ("connection", "sentence"),
    [
        (CONNECTION.format("127.0.0.1"), "a is reached at 127.0.0.1, where no other machine reaches it; give the one"),
        (CONNECTION.format("fe80::1"), "a is reached at fe80::1, an IPv6 address; give the one that"),
        ("", "a does not know at which address ssh reaches it; give the one that"),
    ],
)
def test_an_address_that_others_do_not_reach_is_refused(connection: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        address_of(A, connection, is_alone=False)


WORDS = ["conf=synthetic", "cluster=hosts", "cluster.hosts=[a]"]


def test_a_trace_is_of_a_job_and_not_of_what_is_printed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--trace is not for --render"):
        train(WORDS, render=True, trace=tmp_path / "steps.json")


def test_a_run_is_resumed_by_its_own_command() -> None:
    with pytest.raises(UserError, match="resume=auto is not for cluster=hosts; persia resume RUN goes on with a run"):
        train([*WORDS, "resume=auto"])


def test_local_commands_refuse_a_training_for_other_machines(tmp_path: Path) -> None:
    run = compose_run(WORDS)
    plan = plan_job(run, inspect(run.dataset), "train", tmp_path / "run")
    with pytest.raises(ConfigError, match="cluster=hosts is for persia train; this command runs on this machine"):
        Processes(plan, tmp_path)


@pytest.mark.parametrize("command", [attach, stop])
def test_where_no_job_was_started_there_is_none_to_follow(command: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not the run directory of a job; if the job runs on Kubernetes: kubectl"):
        command(tmp_path / "run", now=False) if command is stop else command(tmp_path / "run")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("ssh", "sentence"),
    [
        ('ssh -F "file', "cluster.ssh.*: a shell does not read it: No closing quotation"),
        (" ", "cluster.ssh.*: it is no command; leave it out for ssh"),
    ],
)
def test_an_ssh_command_that_no_shell_reads_is_refused(ssh: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose_run([*WORDS, f"cluster.ssh={quoted(ssh)}"])

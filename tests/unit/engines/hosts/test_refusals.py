"""Commands that are not for jobs on other machines refuse them."""

from pathlib import Path

import pytest

from persia_cli.commands.follow import attach, stop
from persia_cli.commands.train import train
from persia_cli.config.compose import compose_run
from persia_cli.config.words import quoted
from persia_cli.data.read.facts import inspect
from persia_cli.engines.local import Processes
from persia_cli.errors import ConfigError, UserError
from persia_cli.plan.job import plan_job

WORDS = ["conf=synthetic", "cluster=hosts", "cluster.hosts=[a]"]


def test_a_trace_is_of_a_job_and_not_of_what_is_printed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--trace is not for --render"):
        train(WORDS, render=True, trace=tmp_path / "steps.json")


def test_a_run_is_resumed_by_its_own_command() -> None:
    with pytest.raises(UserError, match="resume=auto is not for cluster=hosts; persia resume RUN goes on with a run"):
        train([*WORDS, "resume=auto"])


def test_commands_that_start_processes_here_do_not_take_a_training_for_other_machines(tmp_path: Path) -> None:
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

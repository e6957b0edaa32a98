"""The arguments by which engines start a role, its configuration and resources."""

from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.record import parsed
from persia_cli.engines.driver_input import configuration
from persia_cli.engines.placement import GIB, Resources, resources_of
from persia_cli.engines.role_options import index_of, role_arguments
from persia_cli.errors import ConfigError
from persia_cli.plan.job import ROLES


def test_a_replica_has_a_file_of_keys_or_is_attached_to_its_driver() -> None:
    assert role_arguments("nn-worker", "auto", "tcp://10.0.0.1:7000", "/etc/persia/keys") == [
        "launch-role", "nn-worker", "--index", "auto", "--coordinator", "tcp://10.0.0.1:7000",
        "--key-file", "/etc/persia/keys", "--supervise",
    ]  # fmt: skip
    assert role_arguments("nn-worker", 1, "tcp://h:7", advertise="tcp://e:1", cpus="0-3,8") == [
        "launch-role", "nn-worker", "--index", "1", "--coordinator", "tcp://h:7", "--key-file", "-",
        "--advertise", "tcp://e:1", "--cpus", "0-3,8", "--attached",
    ]  # fmt: skip


def test_the_configuration_is_whole_and_its_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["conf=criteo", "dataset.path=rows", "checkpoint.path=saved"]
    text = configuration(compose_run([*words, "cluster=hosts"]))
    run = parsed(text, "standard input")
    assert run.dataset.kind == "parquet"
    assert run.dataset.paths == (str(tmp_path / "rows"),)
    assert run.checkpoint.path == str(tmp_path / "saved")
    assert run.cluster.kind == "hosts"


@pytest.mark.parametrize("text", ["name: [", "name: a", "- 1", ""])
def test_what_is_no_configuration_is_refused_with_its_source(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^standard input: "):
        parsed(text, "standard input")


def test_resources_follow_from_the_plan_of_the_job() -> None:
    words = ["cluster=hosts", "cluster.embedding_servers=3", "embedding.memory=6GiB", "train.threads=4"]
    run = compose_run([*words, "train.device=cuda"])
    found = {role: resources_of(run, role) for role in ROLES}
    assert found["coordinator"] == Resources(1, GIB)
    assert found["embedding-worker"] == Resources(1, 2 * GIB)
    assert found["data-loader"] == Resources(2, 2 * GIB)
    assert found["nn-worker"] == Resources(5, 4 * GIB, 1)
    assert found["embedding-server"].cpus == 2
    assert found["embedding-server"].memory == pytest.approx(GIB + 2 * GIB * 1.05, rel=1e-3)


def test_settings_of_the_user_go_first() -> None:
    words = ["cluster.resources.nn_worker.cpus=7", "cluster.resources={embedding_server: {memory: 64GiB}}"]
    run = compose_run(["cluster=hosts", *words, "cluster.resources.nn_worker.gpus=2"])
    assert resources_of(run, "nn-worker") == Resources(7, 4 * GIB, 2)
    assert resources_of(run, "embedding-server") == Resources(2, 64 * GIB)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cluster=local", "cluster.folder=x"], "cluster.folder=x: no such key where cluster.kind=local"),
        (["cluster=local", "cluster.placement=packed"], "cluster.kind=hosts, kubernetes, ray or slurm has it"),
        (["cluster=hosts", "cluster.resources.data_loader.gpus=1"], "cluster.resources.data_loader.gpus: only NN wor"),
        (["cluster=hosts", "cluster.resources.nn_worker.cpu=1"], "did you mean cluster.resources.nn_worker.cpus"),
        (["cluster=hosts", "cluster.transport=ipc"], "cluster.kind=local has it"),
        (["cluster=hosts", "cluster.hosts=[a,b,a]"], "cluster.hosts has a twice; name each machine once"),
        (["cluster=hosts", "cluster.hosts=['-oProxy=x']"], "-oProxy=x is an option of ssh and no "),
    ],
)
def test_settings_of_another_kind_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_run(words)
    assert sentence in str(refused.value)


def test_a_replica_is_given_its_number_or_has_that_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    assert index_of("12") == 12
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    assert index_of("auto") == 3
    assert index_of("0") == 0


@pytest.mark.parametrize("text", ["-1", "1.5", "²", "Auto"])
def test_what_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with pytest.raises(ConfigError, match=f"--index {text}: expected a number from 0 on"):
        index_of(text)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", text or "x")
    with pytest.raises(ConfigError, match=r"--index auto: JOB_COMPLETION_INDEX .*: expected a number"):
        index_of("auto")


def test_elsewhere_there_is_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
    with pytest.raises(ConfigError, match="JOB_COMPLETION_INDEX is not set"):
        index_of("auto")

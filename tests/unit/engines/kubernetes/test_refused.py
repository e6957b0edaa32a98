"""Settings that pods cannot have, and commands that are for kubectl."""

from pathlib import Path

import pytest

from persia_cli.commands.follow import attach, stop
from persia_cli.config.compose import compose_run
from persia_cli.engines.kubernetes.engine import manifests
from persia_cli.engines.kubernetes.names import attach_line, logs_line, stop_line
from persia_cli.errors import ConfigError, UserError
from tests.unit.engines.kubernetes.test_manifests import PLAIN, jobset_of


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Shop_a.2", "lower-case letters, digits and hyphens, a letter first; set name=shop-a-2"),
        ("-", "set name=job"),
        ("shop-", "set name=shop"),
    ],
)
def test_a_name_that_no_host_can_have(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        manifests(compose_run(PLAIN), name)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("cluster.image=null", "cluster.image: an image with the command persia"),
        ("checkpoint.path=saved", "checkpoint.path=saved: pods do not have the files of this machine; give a URI, or"),
        ("checkpoint.at_end=true", "checkpoint.path has to be a URI that all pods reach"),
        ("checkpoint={path: /data/saved, at_end: true}", "checkpoint.path has to be a URI"),
        ("checkpoint={path: 'local:///data/x', at_end: true}", "checkpoint.path has to be a URI"),
        ("init_from.path=runs/a", "init_from.path=runs/a: pods do not have"),
    ],
)
def test_a_setting_that_no_cluster_takes(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        manifests(compose_run([*PLAIN, "cluster.volumes=[{claim: a, path: /data}]", words]), "shop")


def volumes(paths: list[str]) -> str:
    return f"cluster.volumes=[{', '.join(f'{{claim: a{number}, path: {path}}}' for number, path in enumerate(paths))}]"


@pytest.mark.parametrize(
    ("paths", "sentence"),
    [
        (["/data", "//dev/shm"], "the path /dev/shm pods have for themselves; give a1"),
        (["/run/persia/rows"], "the path /run/persia/rows pods have"),
        (["/data/../run"], "the path /run hides /run/persia, which pods have"),
        (["/proc/1"], "the path /proc/1 pods have"),
    ],
)
def test_a_volume_that_would_hide_what_pods_have(paths: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^cluster.volumes: {sentence}"):
        manifests(compose_run([*PLAIN, volumes(paths)]), "shop")


def test_volumes_next_to_and_in_each_other() -> None:
    for paths in (["/data", "/data/rows", "/data2"], ["/tmp/rows", "/runs", "/run/persia2"]):
        made = jobset_of(manifests(compose_run([*PLAIN, volumes(paths)]), "shop"))
        mounts = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
        found = [mount["mountPath"] for mount in mounts["volumeMounts"]]
        assert found[-len(paths) :] == paths
        assert len(set(found)) == len(found)


def test_paths_of_data_and_models_are_those_of_pods() -> None:
    words = ["conf=criteo", *PLAIN[1:]]
    net = "model={{kind: custom, dim: 4, file: {}, name: Net}}"
    volumes = "cluster.volumes=[{claim: a, path: /data, read_only: false}]"
    saved = "checkpoint={path: /data/b, at_end: true}"
    manifests(compose_run([*words, "dataset.path=/data/x", net.format("/opt/net.py"), volumes, saved]), "shop")
    with pytest.raises(ConfigError, match=r"dataset.path=rows: pods do not have the files of this machine"):
        manifests(compose_run([*words, "dataset.path=rows"]), "shop")
    with pytest.raises(ConfigError, match=r"model.file=net.py: pods do not have the files of this machine"):
        manifests(compose_run([*words, "dataset.path=s3://a/b", net.format("net.py")]), "shop")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("cluster.run_claim=My_Claim", "cluster.run_claim"),
        ("cluster.volumes=[{claim: a, path: data}]", "path"),
        ("cluster.environment_secret=[a]", "environment_secrets"),
    ],
)
def test_a_setting_that_means_nothing(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose_run([*PLAIN, words])


def test_a_job_is_shown_in_its_coordinators_container() -> None:
    shown = "kubectl exec -it job/shop-coordinator-0 -- persia attach /run/persia/runs/shop"
    assert attach_line("shop") == shown
    assert stop_line("shop") == "kubectl delete jobset shop --cascade=foreground"


@pytest.mark.parametrize(
    ("role", "selected"),
    [
        ("", ""),
        ("embedding-server", ",app.kubernetes.io/component=embedding-server"),
        ("nn-worker-1", ",app.kubernetes.io/component=nn-worker,batch.kubernetes.io/job-completion-index=1"),
    ],
)
def test_logs_are_those_of_all_of_a_role_or_of_a_replica(role: str, selected: str) -> None:
    line = f"kubectl logs --prefix --tail=-1 -l app.kubernetes.io/instance=shop{selected}"
    assert logs_line("shop", role) == line


def test_commands_without_a_run_name_what_a_job_on_kubernetes_needs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no.* run directory of a job; if .*: kubectl exec -it job/shop-coordinator-0"):
        attach(tmp_path / "shop")
    with pytest.raises(UserError, match=r"run directory of a job; if .* kubectl delete jobset shop --cascade"):
        stop(tmp_path / "shop")

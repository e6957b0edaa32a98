"""`--dry-run` and `--render` print the plan or the job, and start nothing."""

import os
import re
from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines.engine import engine_of
from persia_cli.jobs.description import training_description
from persia_cli.storage.addresses import VARIABLE


def test_the_plan(persia) -> None:
    words = ("dataset=tiny", "name=plan", "train.batch_size=100", "cluster.embedding_servers=2", "model.dim=4")
    ended = persia("train", *words, "--run-dir", "out/run", "--dry-run", "--verbose")
    conf = "--conf-dir " + str(Path("conf").absolute())
    assert (ended.code, ended.err) == (0, f"next      persia train {' '.join(words)} {conf} --run-dir out/run\n")
    lines = ended.out.splitlines()
    assert lines[0] == "run       plan in out/run"
    assert "600 training and 200 evaluation samples; 2 dense and 2 sparse features, 1 label" in lines[2]
    assert lines[3] == "model     ffnn, dim 4, hidden 400-400-400"
    assert lines[5].startswith("training  6 steps of 100 samples; hybrid, staleness 3; adagrad 0.02 for rows")
    assert lines[6] == "saving    every 10 minutes, at the end; after a crash training goes on from the newest one"
    assert lines[7].startswith("cluster   local: 1 coordinator, 2 embedding-server, ")
    assert re.search(r"^all +1\.0 GiB$", ended.out, re.MULTILINE)
    assert "persia config model, with the same arguments, counts its weights" in " ".join(ended.out.split())
    commands = [line.strip() for line in lines if line.startswith("  persia launch-role ")]
    first = "persia launch-role coordinator --coordinator ADDRESS --index 0 --run-dir out/run"
    assert commands[0].startswith(f"{first} {' '.join(words)} --conf-dir")
    roles = ("embedding-server --index 0", "embedding-server --index 1", "embedding-worker --index 0",
             "data-loader --index 0", "nn-worker --index 0")  # fmt: skip
    assert [command.replace(" --coordinator ADDRESS", "") for command in commands[1:]] == [
        f"persia launch-role {role} --token-file out/run/token" for role in roles
    ]
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("train", "dataset=tiny", "checkpoint.path={}", "--dry-run", "--verbose"),
        ("checkpoint", "ls", "{}"),
        ("logs", "{}"),
    ],
)
def test_no_command_prints_the_secrets_of_a_uri(
    persia, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Those that take folders only read the URI as a path, and name it in their error."""
    monkeypatch.setenv(VARIABLE, "{}")  # where a job's command keeps them
    ended = persia(*(word.format("s3://AKIA:p4ss/word@bucket/x?secret_key=h1dden") for word in words))
    assert "bucket/x" in ended.out + ended.err
    assert not [each for each in ("AKIA", "p4ss", "h1dden") if each in ended.out + ended.err]


def test_tables_are_shown_as_they_will_be_kept(persia) -> None:
    tables = "{feature_0: {dim: 4, dtype: bfloat16, share: 0.25}, feature_1: {hash_stack: {rounds: 2, size: 50}}}"
    words = ("optimizer=rowwise_adagrad", "embedding.capacity=100000", f"embedding.tables={tables}")
    ended = persia("train", "dataset=tiny", *words, "--dry-run")
    assert ended.code == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines() if line.startswith("feature_")]
    assert [row[:5] for row in rows] == [
        ["feature_0", "4", "bfloat16", "rowwise_adagrad", "25,000"],
        ["feature_1", "16", "float32", "rowwise_adagrad", "100"],
    ]


def test_equal_tables_are_one_line_without_commands(persia) -> None:
    ended = persia("train", "conf=criteo", "embedding.capacity=1000", "--dry-run")
    assert ended.code == 0
    [line] = [line for line in ended.out.splitlines() if line.startswith("C1 ")]
    assert line.split()[:8] == ["C1", "…", "C26:", "26", "tables", "16", "float32", "adagrad"]
    assert "launch-role" not in ended.out


def test_schedules_are_shown_where_there_are_any(persia) -> None:
    rows = "optimizer.embedding.schedule={kind: step, warmup_steps: 10, every_steps: 1000, factor: 0.5}"
    dense = "optimizer.dense.schedule={kind: cosine, over_steps: 2000, floor: 0.1}"
    ended = persia("train", "dataset=tiny", rows, dense, "--dry-run")
    assert (
        "; adagrad 0.02 (10 steps warm-up, x 0.5 every 1,000 steps) for rows, "
        "adam 0.001 (cosine to 0.1 over 2,000 steps) for dense weights; seed 0\n"
    ) in ended.out


def test_the_default_run_directory_has_name_and_time(persia) -> None:
    ended = persia("train", "dataset=tiny", "name=mine", "--dry-run")
    assert re.match(r"run +mine in runs/mine-\d{8}-\d{6}\n", ended.out)


OWN = sorted(os.sched_getaffinity(0))


def test_a_dry_run_has_them_in_its_commands(persia) -> None:
    first, *_, last = [*OWN, OWN[-1]]
    given = f"cluster.pin={{embedding_server: ['{first},{last}', {last}], nn_worker: {first}-{first}}}"
    words = ("dataset=tiny", "cluster=local", "cluster.embedding_servers=2", given)
    ended = persia("train", *words, "--dry-run", "--verbose")
    assert ended.code == 0, ended.err
    pinned = dict(re.findall(r"^  persia launch-role (\S+ .*--index \d) --cpus (\S+) --token", ended.out, re.MULTILINE))
    assert pinned == {
        "embedding-server --coordinator ADDRESS --index 0": f"{first},{last}",
        "embedding-server --coordinator ADDRESS --index 1": f"{last}",
        "nn-worker --coordinator ADDRESS --index 0": f"{first}-{first}",
    }


def test_a_job_that_cannot_be_pinned_does_not_start(persia) -> None:
    ended = persia("train", "dataset=tiny", "cluster=local", "cluster.pin.data_loader=9999", "--run-dir", "run")
    assert ended.code == 2
    assert "error: cluster.pin.data_loader=9999 for data-loader-0: this machine has no processor 9999" in ended.err
    assert not Path("run").exists()


@pytest.mark.parametrize("text", ["9999", "some"])
def test_a_role_that_cannot_be_pinned_does_not_start(persia, text: str) -> None:
    words = ["nn-worker", "--coordinator", "tcp://127.0.0.1:7", "--index", "0", "--token-file", "token"]
    ended = persia("launch-role", *words, "--cpus", text)
    assert ended.code == 2
    assert ended.err.startswith(f"error: --cpus {text}: ")


WORDS = ["conf=synthetic", "checkpoint={at_end: false, every_minutes: null}"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["cluster=kubernetes", "cluster.image=persia"], "    app.kubernetes.io/instance: shop\n"),
        (["cluster=slurm"], "#SBATCH --job-name=shop\n"),
        (["cluster=hosts", "cluster.hosts=[h1]"], " shop"),
    ],
    ids=["kubernetes", "slurm", "hosts"],
)
def test_a_job_in_the_current_folder_is_called_as_that_is(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    run = compose_run([*WORDS, *words])
    assert line in engine_of(run.cluster).rendered(run, Path())


def test_a_job_for_other_machines_is_described_before_its_data_are_read() -> None:
    text = training_description(compose_run(["cluster=slurm", "train.batch_size=auto"]))
    assert text.startswith("auto samples; hybrid, staleness 3; adagrad auto for rows, adam 0.001 for dense weights")

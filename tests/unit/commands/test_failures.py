"""Failures end as `error:` lines on stderr and an exit code; tracebacks come with --debug alone."""

from pathlib import Path

import pytest

from persia_cli.commands.predict import paths_and_overrides
from persia_cli.engines.engine import Engine
from persia_cli.errors import RoleError, UserError
from persia_cli.plan.job import JobPlan
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder


def test_mistakes_in_arguments(persia) -> None:
    ended = persia("train", "train.batch_size=abc", "nmae=x")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines() == [
        "error: train.batch_size=abc: expected auto or a whole number above 0",
        "error: nmae=x: no such key; did you mean name (text)?",
    ]


def test_debug_adds_the_traceback_wherever_it_stands(persia) -> None:
    for words in (("--debug", "train", "seed=x"), ("train", "seed=x", "--debug")):
        ended = persia(*words)
        assert ended.code == 2
        assert "Traceback (most recent call last)" in ended.err
        assert ended.err.endswith("error: seed=x: expected a whole number of at least 0\n")


LOG = "nn-worker-0 was killed by SIGKILL; the end of its log:\n  line one [x]\n  line two"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ZeroDivisionError("x"), "internal error: ZeroDivisionError: x; run again with --debug for the traceback\n"),
        (RoleError(LOG), f"error: {LOG}\n"),
    ],
    ids=["unexpected", "with a log"],
)
def test_an_error_in_the_program_is_our_fault(persia, monkeypatch, error: Exception, text: str) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("persia_cli.jobs.training.compose_run", fail)
    ended = persia("train")
    assert (ended.code, ended.err) == (1, text)
    assert "Traceback" in persia("train", "--debug").err


def test_a_run_directory_holds_one_run_and_nothing_else(persia) -> None:
    Path("taken").mkdir()
    Path("taken/config.yaml").touch()
    Path("notes.txt").touch()
    for folder, why in (("taken", "already contains a run"), (".", "contains other files"), ("notes.txt", "is a file")):
        ended = persia("train", "dataset=tiny", "--run-dir", folder, "--dry-run")
        assert ended.code == 2
        assert why in ended.err
        assert "--run-dir" in ended.err


def test_a_record_at_a_uri_is_refused_with_the_alternative(persia) -> None:
    begins = ["launch-role", "coordinator", "--coordinator", "tcp://127.0.0.1:*", "--index", "0", "dataset=tiny"]
    ended = persia(*begins, "--run-dir", "s3://bucket/run")
    assert ended.code == 2
    assert ended.err.startswith(
        "error: s3://bucket/run is a URI, and the record of a run is appended to on a disk while"
    )
    assert "the URI as checkpoint.path" in ended.err
    assert not Path("s3:").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nn-worker", "conf=base", "--token-file", "token"), "give 'conf=base' there"),
        (("coordinator", "conf=base"), "needs --run-dir"),
        (("coordinator", "--run-dir", "run", "resume=other"), "resume=other: "),
    ],
)
def test_a_role_refuses_what_is_not_for_it(persia, words: tuple[str, ...], sentence: str) -> None:
    ended = persia("launch-role", *words, "--coordinator", "tcp://127.0.0.1:1", "--index", "0")
    assert (ended.code, sentence in ended.err) == (2, True), ended.err


def test_ctrl_c_names_the_checkpoint_that_is_kept(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Engine, plan: JobPlan, follow: object) -> None:
        for step in (20, 100):
            checkpoint_folder(plan.run_dir / CHECKPOINTS, step).mkdir(parents=True)
            (checkpoint_folder(plan.run_dir / CHECKPOINTS, step) / "manifest.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("persia_cli.engines.embedded.EmbeddedEngine.launch", interrupted)
    ended = persia("train", "dataset=tiny", "cluster=embedded", "--run-dir", "run")
    assert ended.code == 130
    assert "the model of step 100 is kept in run/checkpoints/step-100; persia resume run" in ended.err


def test_a_network_that_cannot_be_built_is_refused_before_roles_start(persia) -> None:
    Path("net.py").write_text("class Net:\n    pass\n")
    model = "model={kind: custom, dim: 4, file: net.py, name: Nett}"
    command = ("launch-role", "coordinator", "--coordinator", "tcp://127.0.0.1:0", "--index", "0", "--run-dir", "run")
    ended = persia(*command, "dataset=tiny", model, "mode=sync", "cluster=local")
    assert ended.code == 2, ended.err
    assert "net.py has no such class" in ended.err
    assert "nn-worker-0" not in ended.err
    assert not Path("run").exists()


def test_an_interrupt_of_which_a_library_made_another_error_stays_one(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise RuntimeError("cannot make a validator") from interrupt

    monkeypatch.setattr("persia_cli.main.app", fail)
    with pytest.raises(KeyboardInterrupt):
        persia("report")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "-m"), "several values are tried by `persia sweep`"),
        (("train", "--cfg", "job"), "`persia config show`"),
        (("train", "--config", "x.yaml"), "conf=NAME or conf=PATH.yaml"),
        (("train", "--batch-size=5"), "train.batch_size=VALUE"),
        (("train", "--output-dir", "x"), "--run-dir DIR"),
        (("train", "--wombat"), "--wombat: persia train has no such option; `persia train --help`"),
        (("train", "--run-di", "x"), "did you mean --run-dir?"),
        (("trian",), "no such command 'trian'"),
        (("driv",), "no such command 'driv'; `persia --help` lists the options"),
        (("inspect", "x.csv"), "did you mean persia data inspect?"),
        (("eval", "runs/x", "later.csv"), "--data later.csv"),
        (("train", "--run-dir="), "--run-dir is empty"),
        (("eval", ""), "an argument is empty"),
        (("eval",), "missing argument 'RUN|CHECKPOINT'; `persia eval --help`"),
    ],
)
def test_it_is_one_sentence_with_what_to_write(persia, words: tuple[str, ...], sentence: str) -> None:
    ended = persia(*words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert len(ended.err.splitlines()) == 1
    assert sentence in ended.err


def test_without_arguments_there_is_help(persia) -> None:
    ended = persia()
    assert ended.code == 2
    assert "Usage: " in ended.err + ended.out


def test_paths_and_settings_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day=3").mkdir()
    given = ["a.parquet", "data/day=2/x", "day=3", "s3://b/k=v", "cluster.nn_workers=2", "~dataset.fill", "day=4"]
    assert paths_and_overrides(given) == (given[:4], given[4:])
    with pytest.raises(UserError, match="name the data to score first"):
        paths_and_overrides(["day=4"])


def test_a_path_is_at_home_wherever_it_is_given(persia, monkeypatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "taken").mkdir(parents=True)
    (home / "taken" / "notes.txt").touch()
    monkeypatch.setenv("HOME", str(home))
    assert f"{home}/taken contains other files" in persia("train", "dataset=tiny", "--run-dir=~/taken", "--dry-run").err
    assert persia("data", "inspect", "~/a.csv").err.startswith(f"error: {home}/a.csv does not exist")


@pytest.mark.parametrize("name", ["notes.txt/run", "x" * 300])
def test_a_path_that_cannot_be_one_is_a_sentence(persia, name: str) -> None:
    Path("notes.txt").touch()
    ended = persia("train", "dataset=tiny", "cluster=embedded", "--run-dir", name)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert name in ended.err

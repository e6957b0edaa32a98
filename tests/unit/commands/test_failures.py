"""Failures end as `error:` lines on stderr and an exit code; tracebacks come with --debug alone."""

from pathlib import Path

import pytest

from persia_cli.errors import PersiaError, RoleError
from persia_cli.plan.job import JobPlan
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder


def test_mistakes_in_arguments(persia) -> None:
    ended = persia("train", "train.batch_size=abc", "nmae=x")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines() == [
        "error: train.batch_size=abc: expected a whole number above 0",
        "error: nmae=x: no such key; did you mean name (text)?",
    ]


def test_debug_adds_the_traceback_wherever_it_stands(persia) -> None:
    for words in (("--debug", "train", "seed=x"), ("train", "seed=x", "--debug")):
        ended = persia(*words)
        assert ended.code == 2
        assert "Traceback (most recent call last)" in ended.err
        assert ended.err.endswith("error: seed=x: expected a whole number of at least 0\n")


def test_an_unexpected_exception_is_one_line(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("persia_cli.config.compose.compose_run", fail)
    ended = persia("train")
    hint = "run again with --debug for the traceback"
    assert (ended.code, ended.err) == (1, f"internal error: ZeroDivisionError: division by zero; {hint}\n")
    assert "Traceback" in persia("train", "--debug").err


def test_the_log_below_an_error_stays_as_it_is(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RoleError("nn-worker-0 was killed by SIGKILL; the end of its log:\n  line one [x]\n  line two")

    monkeypatch.setattr("persia_cli.config.compose.compose_run", fail)
    ended = persia("train")
    assert ended.code == PersiaError.exit_code == 1
    assert ended.err.splitlines() == [
        "error: nn-worker-0 was killed by SIGKILL; the end of its log:",
        "  line one [x]",
        "  line two",
    ]


def test_long_errors_are_not_wrapped(persia) -> None:
    ended = persia("train", f"seed={'x' * 50}", f"conf={'long/' * 60}file.yaml")
    assert len(ended.err.splitlines()) == 1


def test_unknown_commands_and_options(persia) -> None:
    assert "Did you mean 'train'" in persia("trian").err
    ended = persia("train", "--wombat")
    assert ended.code == 2
    assert "--wombat" in ended.err


def test_a_run_directory_holds_one_run(persia) -> None:
    Path("taken").mkdir()
    Path("taken/config.yaml").touch()
    ended = persia("train", "dataset=tiny", "--run-dir", "taken", "--dry-run")
    assert ended.code == 2
    assert ended.err == "error: taken already contains a run; choose another --run-dir or remove it\n"


def test_a_run_directory_holds_nothing_else(persia) -> None:
    Path("notes.txt").touch()
    ended = persia("train", "dataset=tiny", "--run-dir", ".", "--dry-run")
    sentence = f"{Path.cwd()} contains other files; choose an empty folder or a new one as --run-dir"
    assert (ended.code, ended.err) == (2, f"error: {sentence}\n")
    ended = persia("train", "dataset=tiny", "--run-dir", "notes.txt", "--dry-run")
    assert (ended.code, ended.err) == (2, "error: notes.txt is a file; choose another --run-dir\n")


def test_a_record_at_a_uri_is_refused_with_the_alternative(persia) -> None:
    begins = ["launch-role", "coordinator", "--coordinator", "tcp://127.0.0.1:*", "--index", "0", "dataset=tiny"]
    ended = persia(*begins, "--run-dir", "s3://bucket/run")
    assert ended.code == 2
    assert ended.err.startswith(
        "error: s3://bucket/run is a URI, and the record of a run is appended to on a disk while"
    )
    assert "the URI as checkpoint.path" in ended.err
    ended = persia("train", "dataset=tiny", "--run-dir", "s3://bucket/run", "resume=runs/other")
    assert (ended.code, "persia resume s3://bucket/run goes on with that" in ended.err) == (2, True), ended.err
    assert not Path("s3:").exists()


def test_a_dry_run_claims_nothing(persia) -> None:
    assert persia("train", "dataset=tiny", "--dry-run").code == 0
    assert persia("train", "dataset=tiny", "--dry-run", "--run-dir", "mine").code == 0
    assert not Path("runs").exists()
    assert not Path("mine").exists()


def test_eval_of_what_is_no_run(persia) -> None:
    Path("empty").mkdir()
    error = (
        "error: empty is neither a run directory nor a checkpoint: it has no config.yaml and no manifest.json; give "
        "the folder that persia train named at its start\n"
    )
    ended = persia("eval", "empty")
    assert (ended.code, ended.err) == (2, error)


def test_eval_of_a_run_that_was_not_saved(persia) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text(persia("config", "show", "dataset=tiny").out)
    ended = persia("eval", "run")
    assert ended.code == 2
    assert ended.err.startswith("error: run has no complete checkpoint")


def test_only_the_coordinator_takes_a_configuration(persia) -> None:
    words = ("--coordinator", "tcp://127.0.0.1:1", "--index", "0", "conf=base")
    ended = persia("launch-role", "nn-worker", *words, "--token-file", "token")
    assert ended.err == "error: nn-worker gets its configuration from the coordinator; give 'conf=base' there\n"
    ended = persia("launch-role", "coordinator", *words)
    assert ended.err == "error: the coordinator needs --run-dir, the folder of its run\n"


def test_a_coordinator_goes_on_with_its_own_run_alone(persia) -> None:
    words = ("--coordinator", "tcp://127.0.0.1:0", "--index", "0", "--run-dir", "run")
    ended = persia("launch-role", "coordinator", *words, "resume=other")
    said = "error: resume=other: the coordinator goes on with the run in its --run-dir; give resume=auto\n"
    assert (ended.code, ended.err) == (2, said)


def test_an_unknown_recipe(persia) -> None:
    ended = persia("recipe", "prepare", "crite", "--input", "a", "--output", "b")
    assert (ended.code, ended.err) == (2, "error: no recipe crite; did you mean criteo?\n")


def test_ctrl_c_ends_with_a_sentence(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("persia_cli.engines.embedded.launch", interrupted)
    ended = persia("train", "dataset=tiny", "cluster=embedded", "--run-dir", "run")
    assert ended.code == 130
    lost = (
        "interrupted; everything is stopped; the model is lost, since nothing was saved yet (checkpoint.every_steps "
        "saves during training); run keeps the metrics\n"
    )
    assert ended.err.endswith(lost)


def test_ctrl_c_names_the_checkpoint_that_is_kept(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(plan: JobPlan, _: object) -> None:
        for step in (20, 100):
            checkpoint_folder(plan.run_dir / CHECKPOINTS, step).mkdir(parents=True)
            (checkpoint_folder(plan.run_dir / CHECKPOINTS, step) / "manifest.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("persia_cli.engines.embedded.launch", interrupted)
    ended = persia("train", "dataset=tiny", "cluster=embedded", "--run-dir", "run")
    assert ended.code == 130
    kept = (
        "interrupted; everything is stopped; the model of step 100 is kept in run/checkpoints/step-100; "
        "persia resume run goes on from there\n"
    )
    assert ended.err.endswith(kept)


@pytest.mark.parametrize(
    "command",
    [
        ["launch-role", "coordinator", "--coordinator", "tcp://127.0.0.1:0", "--index", "0", "--run-dir", "run"],
        ["bench", "throughput", "--steps", "10"],
        ["bench", "modes", "--quick"],
    ],
    ids=["by hand", "throughput", "modes"],
)
def test_a_network_that_cannot_be_built_is_refused_before_roles_start(persia, command: list[str]) -> None:
    Path("net.py").write_text("class Net:\n    pass\n")
    model = "model={kind: custom, dim: 4, file: net.py, name: Nett}"
    ended = persia(*command, "dataset=tiny", model, "mode=sync", "cluster=local")
    assert ended.code == 2, ended.err
    assert "net.py has no such class" in ended.err
    assert "nn-worker-0" not in ended.err
    assert not Path("run").exists()

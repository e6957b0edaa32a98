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


def test_a_coordinator_goes_on_with_its_own_run_alone(persia) -> None:
    words = ("--coordinator", "tcp://127.0.0.1:0", "--index", "0", "--run-dir", "run")
    ended = persia("launch-role", "coordinator", *words, "resume=other")
    assert (ended.code, ended.err.startswith("error: resume=other: ")) == (2, True)


def test_ctrl_c_names_the_checkpoint_that_is_kept(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(plan: JobPlan, _: object) -> None:
        for step in (20, 100):
            checkpoint_folder(plan.run_dir / CHECKPOINTS, step).mkdir(parents=True)
            (checkpoint_folder(plan.run_dir / CHECKPOINTS, step) / "manifest.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("persia_cli.engines.embedded.launch", interrupted)
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

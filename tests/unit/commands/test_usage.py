"""Command lines that other programs understand: what to write here instead."""

import pytest


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "-m"), "-m: persia train has no such option; several values are tried by `persia sweep`"),
        (("train", "--multirun"), "persia sweep KEY=A,B"),
        (("train", "--cfg", "job"), "the complete configuration is printed by `persia config show`"),
        (("train", "--config", "x.yaml"), "a configuration is a word without dashes: conf=NAME or conf=PATH.yaml"),
        (("train", "--epochs", "3"), "a setting is a word without dashes: train.epochs=VALUE"),
        (("train", "--batch-size=5"), "a setting is a word without dashes: train.batch_size=VALUE"),
        (("train", "--output-dir", "x"), "the folder of a run is set by --run-dir DIR"),
        (("train", "--wombat"), "--wombat: persia train has no such option; `persia train --help` lists the options"),
        (("train", "--run-di", "x"), "did you mean --run-dir?"),
        (("trian",), "no such command 'trian'"),
        (
            ("train", "--run-dir", ""),
            "--run-dir is empty, perhaps from an unset shell variable; give it a value or leave",
        ),
        (("train", "--run-dir="), "--run-dir is empty"),
        (("eval", ""), "an argument is empty, perhaps from an unset shell variable; give a value or leave it out"),
        (("eval",), "missing argument 'RUN|CHECKPOINT'; `persia eval --help` lists"),
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


def test_help_and_version_end_well(persia) -> None:
    assert persia("--version").code == 0
    ended = persia("train", "--help")
    assert (ended.code, ended.err) == (0, "")

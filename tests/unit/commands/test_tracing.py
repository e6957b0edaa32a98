"""`persia train --trace` on the command line: refusals before the job, and messages after it."""

from pathlib import Path

import pytest

from persia_cli.commands.job import trace_window
from persia_cli.errors import UserError
from tests.support.traced import read_trace

SMALL = ("dataset=tiny", "cluster=embedded", "mode=sync", "model.hidden=[4]", "model.dim=4", "train.batch_size=100")


def test_the_command_prints_where_the_trace_is(persia) -> None:
    trained = persia("train", *SMALL, "--run-dir", "run", "--trace", "steps.json", "--trace-steps", "2:5")
    assert trained.code == 0, trained.err
    said = trained.err.splitlines()[-1]
    assert said.startswith("trace     steps.json: steps 2 to 4, ")
    assert said.endswith(" spans; open it at https://ui.perfetto.dev")
    assert {span.step for span in read_trace(Path("steps.json"))} == {2, 3, 4}
    assert not Path("run/trace").exists()


def test_without_the_option_nothing_is_recorded(persia) -> None:
    trained = persia("train", *SMALL, "--run-dir", "run")
    assert trained.code == 0
    assert "trace" not in trained.err
    assert not Path("run/trace").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--trace", "no/such/steps.json"], "--trace=no/such/steps.json: this is not a file in a folder that exists"),
        (["--trace", "conf"], "--trace=conf: this is not a file in a folder that exists"),
        (["--trace", "a.json", "--trace-steps", "6:9"], "--trace-steps=6:9: the training has the steps 0 to 5 only"),
        (["--trace-steps", "0:5"], "--trace-steps selects the steps that --trace FILE traces; give --trace too"),
    ],
)
def test_what_cannot_be_traced_is_refused_before_anything_starts(persia, options: list[str], sentence: str) -> None:
    refused = persia("train", *SMALL, "--run-dir", "run", *options)
    assert (refused.code, refused.out, refused.err) == (2, "", f"error: {sentence}\n")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("words", "steps", "window"),
    [
        (None, 1000, (20, 220)),
        (None, 150, (15, 150)),
        (None, 5, (0, 5)),
        ("0:10", 1000, (0, 10)),
        ("900:5000", 1000, (900, 1000)),
    ],
)
def test_the_window(words: str | None, steps: int, window: tuple[int, int]) -> None:
    assert trace_window(words, steps) == window


@pytest.mark.parametrize("words", ["", "5", "5:5", "9:3", "-1:3", "a:b", "1:2:3", "1.5:3"])
def test_words_that_are_no_steps(words: str) -> None:
    with pytest.raises(UserError, match="expected FIRST:LAST with FIRST below LAST, such as 20:220"):
        trace_window(words, 1000)


def test_steps_beyond_the_end() -> None:
    with pytest.raises(UserError, match="--trace-steps=1000:1010: the training has the steps 0 to 999 only"):
        trace_window("1000:1010", 1000)

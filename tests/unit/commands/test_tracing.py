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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--trace", "no/such/steps.json"], "--trace=no/such/steps.json: this is not a file in a folder that exists"),
        (["--trace", "a.json", "--trace-steps", "6:9"], "--trace-steps=6:9: the training has the steps 0 to 5 only"),
        (["--trace-steps", "0:5"], "--trace-steps selects the steps that --trace FILE traces; give --trace too"),
    ],
)
def test_what_cannot_be_traced_is_refused_before_anything_starts(persia, options: list[str], sentence: str) -> None:
    refused = persia("train", *SMALL, "--run-dir", "run", *options)
    assert (refused.code, refused.out, refused.err) == (2, "", f"error: {sentence}\n")
    assert not Path("run").exists()


def test_the_window() -> None:
    assert [trace_window(None, steps) for steps in (1000, 150, 5)] == [(20, 220), (15, 150), (0, 5)]
    assert [trace_window(words, 1000) for words in ("0:10", "900:5000")] == [(0, 10), (900, 1000)]


@pytest.mark.parametrize("words", ["", "5", "5:5", "-1:3", "a:b", "1:2:3"])
def test_words_that_are_no_steps(words: str) -> None:
    with pytest.raises(UserError, match="FIRST:LAST"):
        trace_window(words, 1000)

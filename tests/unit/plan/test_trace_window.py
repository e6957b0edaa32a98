"""Which steps are traced."""

import pytest

from persia_cli.errors import UserError
from persia_cli.plan.trace import trace_window


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

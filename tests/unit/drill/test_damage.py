"""Damaged messages: whoever receives them must refuse them, and none is a stranger's."""

import random

import pytest

from persia_cli.drill.damage import _message, damaged
from persia_cli.wire.frames import ForeignMessage, MalformedMessage, decode

TOKEN = bytes(range(16))


@pytest.mark.parametrize("role", ["coordinator", "embedding-server", "embedding-worker", "nn-worker"])
def test_each_is_refused_for_what_it_says_and_not_for_its_token(role):
    draw = random.Random(role)
    problems = set()
    for number in range(1, 300):
        frames = damaged(draw, number, _message(draw, role), TOKEN)
        with pytest.raises(MalformedMessage) as error:
            decode(frames, token=TOKEN)
        assert not isinstance(error.value, ForeignMessage)
        problems.add(str(error.value)[:20])
    assert len(problems) > 3


def test_an_answer_can_be_expected_to_some():
    draw = random.Random(0)
    numbers = []
    for number in range(1, 100):
        with pytest.raises(MalformedMessage) as error:
            decode(damaged(draw, number, _message(draw, "embedding-server"), TOKEN), token=TOKEN)
        numbers.append(error.value.request == number)
    assert any(numbers)

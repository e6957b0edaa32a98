"""Damaged messages: whoever receives them must refuse them, and none is a stranger's."""

import random

import pytest
import zmq

from persia_cli.drill import damage
from persia_cli.drill.damage import MESSAGES, _message, damaged, send_damaged
from persia_cli.wire import sockets
from persia_cli.wire.frames import ForeignMessage, MalformedMessage, decode, encode
from persia_cli.wire.messages import Refused
from persia_cli.wire.secret import new_secret
from persia_cli.wire.sockets import Context

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


def test_it_goes_on_until_the_last_of_them_is_refused(monkeypatch, tmp_path):
    """A replica that is slow has read all of them by then, though they would be lost with the socket."""
    secret, got = new_secret(), []
    monkeypatch.setattr(damage, "secret_file_of", lambda process: process)
    monkeypatch.setattr(damage, "read_secret", lambda file: secret)
    monkeypatch.setattr(damage, "_address", lambda process: f"ipc://{tmp_path}/server")
    with Context(secret) as context:
        server = sockets.router(context, f"ipc://{tmp_path}/server")

        def read_one(seconds):
            """Read and answer as a slow server does: one message whenever the drill waits."""
            if server.poll(1000, zmq.POLLIN):
                client, *frames = server.recv_multipart()
                got.append(frames)
                with pytest.raises(MalformedMessage) as error:
                    decode(frames, token=context.token)
                if error.value.request is not None:
                    server.send_multipart([client, *encode(error.value.request, Refused("-"), token=context.token)])

        sent, refused_s = send_damaged("process", "embedding-server", ["other"], read_one)
        server.close()
    assert (sent, len(got)) == (MESSAGES, MESSAGES)
    assert refused_s is not None

"""A replica sends its recording to the coordinator in portions, and clocks are compared by requests and answers."""

from collections.abc import Callable
from typing import Any

from persia_cli.observe.recordings import PORTIONS, TracePortion
from persia_cli.observe.trace import Trace
from persia_cli.roles import recording
from persia_cli.roles.recording import ClockComparison, Recording
from persia_cli.wire.message import Sender
from persia_cli.wire.messages import Ack

STEPS = 25


class Taker:
    """A client whose peer takes messages on request, or while the client waits."""

    def __init__(self, answers: bool = True) -> None:
        self.portions: list[TracePortion] = []
        self._answers, self._waiting = answers, [lambda ack: None][:0]

    def request(self, message: Any, on_reply: Callable[[Ack], None], waiting_for: str) -> None:
        self.portions.append(PORTIONS.decode(message.portion))
        self._waiting.append(on_reply)

    def answer(self) -> None:
        for on_reply in self._waiting:
            on_reply(Ack())
        self._waiting = []

    def attend(self, is_enough: Callable[[], bool], seconds: float) -> bool:
        if self._answers:
            self.answer()
        return is_enough()


def recorded(client: Any, monkeypatch: Any) -> Recording:
    monkeypatch.setattr(recording, "PORTION", 10)
    trace = Trace(0, STEPS)
    for step in range(STEPS):
        with trace.span("training", "forward", step):
            pass
    return Recording(trace, "nn-worker-0", Sender("nn-worker", 0, 1), client)


def test_one_portion_is_in_flight_and_the_rest_follows_at_the_end(monkeypatch) -> None:
    client = Taker()
    sends = recorded(client, monkeypatch)
    sends.send()
    sends.send()
    assert [len(portion.spans) for portion in client.portions] == [10]
    client.answer()
    sends.trace.begin("push", 3)
    sends.end(5.0)
    assert [len(portion.spans) for portion in client.portions] == [10, 10, 6]
    assert [portion.is_last for portion in client.portions] == [False, False, True]
    assert [portion.number for portion in client.portions] == [1, 2, 3]
    assert len({portion.process for portion in client.portions}) == 1
    steps = [span.step for portion in client.portions for span in portion.spans]
    assert steps == [*range(STEPS), 3]
    sends.end(5.0)
    sends.send()
    assert len(client.portions) == 3


def test_an_end_without_an_answer_is_reported(monkeypatch, caplog) -> None:
    sends = recorded(Taker(answers=False), monkeypatch)
    sends.send()
    sends.end(0.0)
    assert "the trace of nn-worker-0 lacks its end" in caplog.text


def test_the_quickest_answer_counts() -> None:
    clocks = ClockComparison()
    assert clocks.best == (0, None)
    clocks.note(1_000, 501_500, 3_000)
    assert clocks.best == (499_500, 1_000)
    clocks.note(5_000, 505_200, 5_400)
    clocks.note(6_000, 590_000, 26_000)
    assert clocks.best == (500_000, 200)
    for at in range(recording.COMPARED):
        clocks.note(at, at + 7_000, at + 1_000)
    assert clocks.best == (6_500, 500), "older comparisons do not apply to clocks that drift"

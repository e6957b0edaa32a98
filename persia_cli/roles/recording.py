"""The transfer of a replica's trace to the coordinator: one portion per heartbeat, and the rest at the end.

So memory and traffic are bounded, and a killed process loses only its last portions.
"""

import logging
import secrets
from collections import deque

import msgspec

from persia_cli.observe.recordings import TracePortion
from persia_cli.observe.trace import Span, Trace, clock_name
from persia_cli.wire.client import Client
from persia_cli.wire.job_messages import Recorded
from persia_cli.wire.message import Sender
from persia_cli.wire.messages import Ack

log = logging.getLogger(__name__)

PORTION = 2000
"""Maximum number of spans in one message, about 200 KB."""
COMPARED = 120
"""Number of recent clock comparisons of which the best counts: those of a minute, in which clocks drift little."""


class ClockComparison:
    """The difference between the coordinator's clock and this process's, by the answers to heartbeats.

    The coordinator reads its clock between question and answer. Taking that moment for the middle has an error of at
    most half the time between them, so the quickest answer is the best.
    """

    def __init__(self) -> None:
        self._comparisons: deque[tuple[int, int]] = deque(maxlen=COMPARED)

    def add(self, sent_ns: int, theirs_ns: int, answered_ns: int) -> None:
        """Add the times of a question and its answer by this clock, and the other clock's time in between."""
        half = (answered_ns - sent_ns + 1) // 2
        self._comparisons.append((half, theirs_ns - sent_ns - half))

    @property
    def best(self) -> tuple[int, int | None]:
        """Return the lead of the coordinator's clock, and its error bound; None before the first comparison."""
        if not self._comparisons:
            return 0, None
        within_ns, ahead_ns = min(self._comparisons)
        return ahead_ns, within_ns


class Recording:
    """The trace of one process, and its transfer to the coordinator."""

    def __init__(self, trace: Trace, replica: str, sender: Sender, client: Client) -> None:
        self.trace, self._replica, self._sender, self._client = trace, replica, sender, client
        self.clocks = ClockComparison()
        self._process, self._number = secrets.token_hex(8), 0
        self._unanswered = 0
        self._is_ended = False

    def send(self) -> None:
        """Send a portion, if there is one and the last was answered."""
        if self.trace.is_wanted and not self._unanswered and not self._is_ended and (spans := self.trace.take(PORTION)):
            self._send(spans, is_last=False)

    def end(self, seconds: float) -> None:
        """Send the rest, and wait at most `seconds` for its acknowledgement; log what is lost."""
        if self._is_ended or not self.trace.is_wanted:
            return
        self._is_ended = True
        self.trace.end_waits()
        deadline = self.trace.clock() + int(seconds * 1e9)
        is_last = False
        while self._client.attend(lambda: not self._unanswered, (deadline - self.trace.clock()) / 1e9) and not is_last:
            spans = self.trace.take(PORTION)
            is_last = len(spans) < PORTION
            self._send(spans, is_last)
        if self._unanswered:
            log.warning("the trace of %s lacks its end: the coordinator did not acknowledge it in time", self._replica)

    def _send(self, spans: list[Span], is_last: bool) -> None:
        self._number += 1
        self._unanswered += 1
        ahead_ns, within_ns = self.clocks.best
        portion = TracePortion(
            self._replica, self._process, self._number, clock_name(), ahead_ns, within_ns, self.trace.dropped, is_last,
            spans,
        )  # fmt: skip
        recorded = Recorded(self._sender, msgspec.json.encode(portion))
        self._client.request(recorded, on_reply=self._on_taken, waiting_for="the coordinator to take a trace")

    def _on_taken(self, _: Ack) -> None:
        self._unanswered -= 1

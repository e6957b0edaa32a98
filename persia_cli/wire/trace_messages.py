"""The message by which recordings of work and waits reach the coordinator."""

from persia_cli.wire.messages import Ack
from persia_cli.wire.parts import MIB, Limit, Request, Sender


class Recorded(Request[Ack], frozen=True):
    """Any role -> coordinator: a portion of what it has recorded for a trace; Ack when that is in the run directory."""

    KIND = 0x54
    LIMIT = Limit(2 * MIB)
    sender: Sender
    portion: bytes
    """A `persia_cli.observe.recordings.TracePortion` as JSON."""

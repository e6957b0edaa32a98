"""How many bytes a client has exchanged with its peer."""

from collections.abc import Sequence
from dataclasses import dataclass

from persia_cli.wire.arrays import Array
from persia_cli.wire.frames import Frame, Received


@dataclass(slots=True)
class ByteCounts:
    """Bytes in both directions since the beginning, repeats included."""

    wire: int = 0
    """Bytes of messages that went through sockets."""
    shared: int = 0
    """Bytes of arrays that were passed in memory which both processes see."""

    def note_sent(self, frames: Sequence[bytes | memoryview], arrays: Sequence[Array]) -> None:
        """Count a message that was sent, with all its arrays; those that are no frame are in shared memory."""
        header, framed = frames[:2], sum(memoryview(frame).nbytes for frame in frames[2:])
        self.wire += sum(map(len, header)) + framed
        self.shared += sum(array.nbytes for array in arrays) - framed

    def note_received(self, frames: Sequence[Frame], received: Received) -> None:
        """Count a message that has come."""
        self.wire += sum(map(len, frames))
        self.shared += received.lent

    def __add__(self, other: "ByteCounts") -> "ByteCounts":
        """Return the sum of both."""
        return ByteCounts(self.wire + other.wire, self.shared + other.shared)

"""The work of a GPU in traces. Copies overlap with graphs of other steps, so each of the three has its own lane."""

from typing import NamedTuple

from persia_cli.observe.trace import Span, Trace

LANES = ("device: copy in", "device: graph", "device: copy out")


class Moments(NamedTuple):
    """The times of a step's work on a device, in nanoseconds of CLOCK_MONOTONIC."""

    begun: int
    """Begin of the copy to the device."""
    arrived: int
    """End of that copy."""
    computed: int
    """End of the graph."""
    done: int
    """End of the copy to the host."""


class DeviceLanes:
    """The lanes of one device in a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._before = Moments(0, 0, 0, 0)

    def add(self, step: int, moments: Moments) -> None:
        """Add the work of a step; each kind of work is in the order of steps."""
        before, self._before = self._before, moments
        begins = moments.begun, max(moments.arrived, before.computed), max(moments.computed, before.done)
        for lane, begin, end in zip(LANES, begins, moments[1:], strict=True):
            self._trace.add(Span(lane, lane.partition(": ")[2], step, None, begin, end))

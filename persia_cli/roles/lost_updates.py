"""The updates that an embedding server has lost with its memory, and those that it still gets."""

from persia_cli.control.position import TRAIN
from persia_cli.control.watermarks import Watermarks
from persia_cli.errors import WireError
from persia_cli.plan.job import Reload
from persia_cli.store.applied_steps import AppliedSteps
from persia_cli.wire.figures import LOST, SINCE
from persia_cli.wire.job_messages import CutShort, EvaluateSteps, PhaseWork, SaveModel, TrainSteps
from persia_cli.wire.messages import LookUp, Update


class LostUpdates:
    """Tells the updates that a server will never get, since a process before it acknowledged them, from all others.

    Its rows are of step `since`, so no later update counts as applied at first. An update whose acknowledgement had not
    arrived is sent again, and applied. Of the others their ranks say, with each look-up and update, that they are
    finished: these are lost. Their number is what the windows of applied steps have got ahead of the updates applied.

    It is final once no update that was in flight at the death can be missing: when each rank has finished `2 * bound`
    steps more than it first said, `bound` being the most steps of a rank in flight, or when a phase begins after it.
    For the first word of a rank comes from a batch that was in flight at the death, or later. That batch began at most
    `bound` steps before what the rank had finished then, and so did the last step in flight end after it.
    """

    def __init__(
        self, watermarks: Watermarks, since: int, bound: int, reload: Reload, kept: AppliedSteps | None = None
    ) -> None:
        """`kept` are the windows in the server's memory file, if it has one, which follow `watermarks`."""
        self._watermarks, self._kept, self._bound = watermarks, kept, bound
        self.since = since
        self._number = reload.number
        self._first: list[int | None] = [None] * len(watermarks.windows)
        self._end = reload.finished
        """The step before which all is finished once the phase is over."""
        self._is_final = reload.is_drained
        self._skip_all(reload.finished)

    def hear(self, message: LookUp | Update) -> None:
        """Take from a batch of training which steps its rank has finished."""
        rank, finished = message.batch.rank, message.finished
        self._skip(rank, finished)
        # Updates may come through a new embedding worker, which knows less.
        if isinstance(message, LookUp) and message.create and self._first[rank] is None:
            self._first[rank] = finished

    def obey(self, number: int, work: PhaseWork) -> None:
        """Take from an instruction which steps are finished, if it begins a phase after the memory was lost."""
        before = self._end
        match work:
            case TrainSteps():
                before, self._end = work.first, work.last
            case CutShort(split=split) if split == TRAIN:
                self._end = work.last
                return
            case SaveModel():
                before = work.step
            case EvaluateSteps():
                pass
            case _:
                return
        if number > self._number:
            self._skip_all(before)
            self._is_final = True

    def end(self) -> None:
        """The job is over, and with it the last phase."""
        self._skip_all(self._end)
        self._is_final = True

    def figures(self, applied: int) -> dict[str, int]:
        """Return the figures SINCE and, once it is final, LOST, if `applied` updates were applied since."""
        self._is_final |= all(self._is_past(rank) for rank in range(len(self._first)))
        if not self._is_final:
            return {SINCE: self.since}
        windows = self._watermarks.windows
        done = sum(window.watermark + 1 - self.since + len(window.above) for window in windows)
        return {SINCE: self.since, LOST: done - applied}

    def _is_past(self, rank: int) -> bool:
        first = self._first[rank]
        return first is not None and self._watermarks.windows[rank].watermark >= first + 2 * self._bound

    def _skip_all(self, finished: int) -> None:
        for rank in range(len(self._watermarks.windows)):
            self._skip(rank, finished)

    def _skip(self, rank: int, finished: int) -> None:
        if self._watermarks.windows[rank].skip(finished - 1) and self._kept is not None:
            self._kept.skip(rank, finished - 1)


def check_finished(message: LookUp | Update, watermark: int) -> None:
    """Raise WireError if a rank says that steps are finished that a server with all its memory has not applied."""
    batch = message.batch
    if message.finished - 1 > watermark:
        raise WireError(
            f"rank {batch.rank} counts the steps before {message.finished} as finished, "
            f"and this server has its updates up to step {watermark}"
        )

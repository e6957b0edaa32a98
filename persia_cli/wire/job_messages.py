"""The messages between the coordinator and all other roles: joining, instructions, statistics, the end."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from persia_cli.wire.message import (
    KIB,
    MIB,
    BatchId,
    Count,
    FieldSet,
    Limit,
    Message,
    ProcessId,
    Request,
    Sender,
    TableTotals,
)
from persia_cli.wire.messages import Ack

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


SENT_AGAIN = "batches_sent_again"
"""Count of the batches whose ids a data loader has sent again after the death of an embedding worker."""


FINISHED = "finished"
"""Count of an embedding server: requests of an earlier process that this one has finished, 0 or 1."""


class Counters(FieldSet, frozen=True):
    """The counters of a replica since it started."""

    updates: dict[str, int] = msgspec.field(default_factory=dict)
    """Updates of an embedding server, by outcome."""
    tables: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """Counters of each table on an embedding server."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """Steps that a data loader sent and values that it had to change; steps that an NN worker scored; bytes and rows of
    a checkpoint that an embedding server has loaded."""


class ReplicaUsage(FieldSet, frozen=True):
    """The resources that a replica has used since it started, and its counters."""

    cpu_s: float
    """CPU time in seconds."""
    rss: Count
    """Resident memory in bytes."""
    messages: dict[str, int] = msgspec.field(default_factory=dict)
    """Irregular events of the wire, by kind."""
    links: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """By role, the bytes exchanged with replicas to which it sends requests, repeats included: of messages (`wire`),
    and of arrays passed in shared memory instead (`shared`)."""
    counters: Counters = Counters()
    ran_s: float = 0.0
    """Seconds since the replica started."""
    waited_s: float = 0.0
    """Seconds of them in which it had nothing to do: an NN worker waited for batches, a data loader for permission to
    send more, others for messages."""
    exchanged: dict[str, int] = msgspec.field(default_factory=dict)
    """`messages` exchanged with all other replicas, and their bytes, as in `links`."""
    unanswered: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of requests without an answer at present, by the replica that has to answer them."""


class IntervalMetrics(FieldSet, frozen=True):
    """The metrics of a rank for the interval between two lines of metrics, without its scores."""

    split: Literal["train", "eval"]
    last: int
    """The step after the interval's last."""
    samples: int
    steps: int
    staleness: dict[Count, Positive]
    """Steps of training by the staleness of their rows, as measured from the servers' watermarks."""
    seconds: Annotated[float, msgspec.Meta(ge=0.0)]
    """Duration by the rank's own clock, from the end of the previous interval or the begin of the phase."""
    loss_sums: tuple[float, ...]
    """For each label, the sum over samples of the loss times the weight."""
    position_weight: float | None = None
    """Of a loss of next elements: the sum of the weights of positions, whose mean the loss is; else None."""
    ids: Count = 0
    """Number of ids looked up, repeats included; an id of a hash stack counts once per round."""
    unknown: Count = 0
    """Number of these ids that had no row."""
    tables: tuple[TableTotals, ...] = ()
    """Counters of each embedding server, as of its answer to the last of these look-ups."""
    more: bool = False
    """True if more reports of the same evaluation follow."""
    retrieval: dict[str, float] = msgspec.field(default_factory=dict)
    """Retrieval metrics, if the run asks for them: in rank 0's last report of an evaluation."""
    gpu_memory: Count | None = None
    """Most bytes that the rank has allocated on its GPU so far; None on a CPU."""


def together(totals: Iterable[TableTotals]) -> TableTotals:
    """Return the sum of the totals of several servers."""
    return TableTotals(*map(sum, zip(*map(astuple, totals), strict=True)))


def latest(received: Iterable[Sequence[TableTotals]]) -> tuple[TableTotals, ...]:
    """Return the newest totals of each server: the maximum of each counter, since none decreases.

    Totals are merged server by server: of two look-ups at the same time, each may be the last one at another server.
    """
    of_servers = zip_longest(*received, fillvalue=TableTotals())
    return tuple(TableTotals(*map(max, zip(*map(astuple, server), strict=True))) for server in of_servers)


Split = Annotated[int, msgspec.Meta(ge=0, le=1)]
"""0 train, 1 eval."""

REPORTS_AHEAD = 16
"""Maximum number of a rank's unanswered reports; they are answered once the reports of all ranks are written."""


class Welcome(Message, frozen=True):
    """Coordinator -> any role: the incarnation of the replica, the job, and the addresses of all replicas."""

    KIND = 0x41
    LIMIT = Limit(16 * MIB)  # a configuration of thousands of features
    incarnation: Count
    run: bytes
    """The resolved run as JSON."""
    job: bytes
    """The plan of the job as JSON."""
    addresses: dict[str, list[str]]
    """Role -> addresses of its replicas, by index."""


class Hello(Request[Welcome], frozen=True):
    """Any role -> coordinator: join the job; Welcome once every replica has joined."""

    KIND = 0x40
    LIMIT = Limit(4 * KIB)
    role: str
    index: Count
    process: ProcessId
    host: str
    version: str
    """Version of the program; the coordinator refuses versions other than its own."""
    protocol: Count
    address: str
    """Address at which the replica serves requests; empty if it serves none."""


class Ready(Request[Ack], frozen=True):
    """Any role -> coordinator: the replica has started and is ready."""

    KIND = 0x42
    sender: Sender
    parameters: Count
    """Number of dense weights that an NN worker trains; 0 for all other roles."""
    rows: Count = 0
    """Number of rows that an embedding server has loaded from a checkpoint."""


class TrainSteps(FieldSet, frozen=True, tag="training"):
    """Train the steps [first, last)."""

    first: Count
    last: Count
    dense_reductions: Count = 0
    row_reductions: Count = 0
    """Number of reductions of the learning rates of dense weights and of rows before these steps."""
    expires: Count = 0
    """A row that was last used more than so many steps ago has expired, by the time of data that grows; 0: none."""


class EvaluateSteps(FieldSet, frozen=True, tag="evaluating"):
    """Evaluate the steps [first, last) of the eval split, numbered over all evaluations of the job."""

    first: Count
    last: Count


class PredictSteps(FieldSet, frozen=True, tag="predicting"):
    """Send the scores of the steps [first, last)."""

    first: Count
    last: Count


class SaveModel(FieldSet, frozen=True, tag="saving"):
    """Write the model of the state after `step` steps into a folder.

    Done as soon as later changes do not affect the content of the files; `Saved` follows once they are written.
    """

    folder: str
    step: Count
    awaited: bool = False
    """True if a process waits for it: it is written at full speed, even if that slows training down."""
    since: Count | None = None
    """Of a cut for the publisher: only rows last used in this step or later, and the ids that have left; else None."""


class Pause(FieldSet, frozen=True, tag="paused"):
    """Wait before a step; the driver of a benchmark ends this, or the next portion of data that grows."""

    step: Count


class Halt(FieldSet, frozen=True, tag="halt"):
    """Start no more steps of this split, and send the first that has not started as Halted: the phase is cut short."""

    split: Split


class CutShort(FieldSet, frozen=True, tag="cut"):
    """Continue, also after Halt, and end the phase before the step `last`, of which no rank has all samples."""

    split: Split
    last: Count


class Stop(FieldSet, frozen=True, tag="stop"):
    """End, for this reason; empty if all is done. If the job can be resumed, processes end with exit code 75."""

    why: str = ""
    is_resumable: bool = False


PhaseWork = TrainSteps | EvaluateSteps | PredictSteps | SaveModel | Pause | Halt | CutShort | Stop


class Instruction(Message, frozen=True):
    """Coordinator -> any role: the next instruction."""

    KIND = 0x44
    LIMIT = Limit(64 * KIB)
    number: Count
    work: PhaseWork


class Next(Request[Instruction], frozen=True):
    """Any role -> coordinator: ask for the instruction after number `after`; parked until there is one."""

    KIND = 0x43
    sender: Sender
    after: Count


class Halted(Request[Ack], frozen=True):
    """NN worker -> coordinator: no step from this one on has started or will start, as instructed (`number`)."""

    KIND = 0x4E
    sender: Sender
    number: Count
    step: Count


class Done(Request[Ack], frozen=True):
    """Any role -> coordinator: instruction `number` is done."""

    KIND = 0x45
    LIMIT = Limit(4 * MIB)  # the counters of its tables
    sender: Sender
    number: Count
    usage: ReplicaUsage | None = None
    """The last counters and resources of a replica that ends."""


class Saved(Request[Ack], frozen=True):
    """Embedding server or NN worker -> coordinator: its part of the checkpoint of a step is on disk, in these files.

    If it could not be written, there are no files, and `failure` is the reason.
    """

    KIND = 0x4F
    LIMIT = Limit(4 * MIB)  # thousands of files
    sender: Sender
    step: Count
    files: bytes
    """As `store.checkpoints.saved.encode_files` returns them."""
    failure: str = ""


class PortionFile(FieldSet, frozen=True):
    """A file of a portion: an absolute path or a URI, its rows, and what identifies its content."""

    path: str
    rows: Count
    content: str


class DataPortion(FieldSet, frozen=True):
    """A portion of data that grows: its number, from 1 on, and its files in the order of their rows."""

    number: Positive
    rows: Positive
    files: tuple[PortionFile, ...]


MOST_FILES = 1000
"""Maximum number of files of a portion."""


class Item(Message, frozen=True):
    """Coordinator -> data loader: a work item, the steps [first, last); with `end`, no steps are left."""

    KIND = 0x47
    LIMIT = Limit(16 * MIB)  # two portions
    first: Count
    last: Count
    end: bool
    portion: Count = 0
    """Number of the portion that has the steps; 0 for data that does not grow."""
    begin: Count = 0
    """The first step of that portion, as the split numbers its steps."""
    portions: tuple[DataPortion, ...] = ()
    """The portion of the steps and the one after it, except those that the loader has or that are not known."""


class NextItem(Request[Item], frozen=True):
    """Data loader -> coordinator: ask for a work item; parked until there is one."""

    KIND = 0x46
    sender: Sender
    split: Split
    finished: Count = 0
    """Every rank has finished the split's steps before this one, so they need not be assigned again."""
    portions: tuple[Count, ...] = ()
    """Numbers of the portions that the loader has."""


class Unreadable(Request[Ack], frozen=True):
    """Data loader -> coordinator: the samples of a step, or some of its rows, cannot be read.

    Ack if the step may be used without these rows; otherwise the job ends before it.
    """

    KIND = 0x57
    LIMIT = Limit(MIB)  # all rows of a batch
    sender: Sender
    split: Split
    step: Count
    error: str
    """A sentence for the user, who can correct it."""
    rows: tuple[Count, ...] = ()
    """The numbers over all files of rows that are left out; empty if the whole step cannot be read."""


class ScoreCounts(NamedTuple):
    """An encoded `persia_cli.observe.scores.ScoreHistogram`."""

    counted: Annotated[NDArray[np.uint64], "count"]
    counts: Annotated[NDArray[np.float64], "count"]
    sums: Annotated[NDArray[np.float64], "task sum"]


class ScoredSamples(NamedTuple):
    """Samples with their scores."""

    query_ids: Annotated[NDArray[np.uint64], "sample"]
    logits: Annotated[NDArray[np.float32], "sample task"]
    labels: Annotated[NDArray[np.float32], "sample task"]
    weights: Annotated[NDArray[np.float32], "sample"] | None
    """None where all samples weigh 1."""


class Report(Request[Ack], frozen=True):
    """NN worker -> coordinator: metrics of one interval and the histogram of its scores; each number counts once.

    Ack when all ranks have reported the interval, so that no rank is further ahead than REPORTS_AHEAD.
    """

    KIND = 0x48
    LIMIT = Limit(MIB, arrays=7, nbytes=256 * MIB)  # a portion of an evaluation, sample by sample
    sender: Sender
    number: Count
    metrics: IntervalMetrics
    scores: ScoreCounts
    samples: ScoredSamples | None
    """The samples of an evaluation that needs metrics within queries."""


class Scores(Request[Ack], frozen=True):
    """NN worker -> coordinator: the network's predictions for a batch of a prediction run; Ack when they are stored."""

    KIND = 0x4C
    LIMIT = Limit(MIB, arrays=1, nbytes=256 * MIB)
    sender: Sender
    batch: BatchId
    logits: Annotated[NDArray[np.float32], "sample task"]


class Change(FieldSet, frozen=True):
    """The process of a replica has died, or another has replaced it; changes of a job are numbered 1, 2, …"""

    number: Count
    role: str
    index: Count
    process: ProcessId
    """The process that died last."""
    alive: bool
    """True if a new process of the replica is running."""
    address: str
    """Address at which the replica's newest process serves requests; empty if it serves none."""


class Beat(Message, frozen=True):
    """Coordinator -> any role: the heartbeat arrived; `stop` asks the replica to end."""

    KIND = 0x4A
    LIMIT = Limit(MIB)  # changes of thousands of replicas
    stop: bool
    changes: tuple[Change, ...] = ()
    """The last change of each replica, where it came after the change that the heartbeat names."""
    clock_ns: Count = 0
    """The coordinator's CLOCK_MONOTONIC at the time of the answer."""


class Heartbeat(Request[Beat], frozen=True):
    """Any role -> coordinator, about twice a second: the replica is alive; its present work and how long it takes."""

    KIND = 0x49
    LIMIT = Limit(MIB)  # a dozen counters of each table
    sender: Sender
    doing: str
    """Work that has no visible result before it is done, such as "training step 7"; empty while waiting for others."""
    doing_s: float
    """Seconds since the work last made progress; time in which the replica did not run does not count."""
    usage: ReplicaUsage
    heard: Count = 0
    """Number of the last change that the replica has received."""


class Leave(Request[Ack], frozen=True):
    """Any role -> coordinator, also before Welcome: this process got a signal to stop, so the job must end.

    With `serves` it works on until the model is saved; without, it ends now.
    """

    KIND = 0x4D
    role: str
    index: Count
    process: ProcessId
    signal: str
    """Name of the signal, such as SIGTERM."""
    serves: bool


class SavedNow(Message, frozen=True):
    """Coordinator -> command: the requested checkpoint is complete, or the reason why there is none."""

    KIND = 0x56
    LIMIT = Limit(64 * KIB)
    path: str
    why: str = ""


class SaveNow(Request[SavedNow], frozen=True):
    """Command -> coordinator: save the model and continue; answered once the checkpoint is complete."""

    KIND = 0x55


class Verdict(Message, frozen=True):
    """Coordinator -> supervisor: start a new process of the replica after so many seconds, or the reason not to."""

    KIND = 0x51
    LIMIT = Limit(64 * KIB)
    restart: bool
    after_s: float
    why: str


class Death(Request[Verdict], frozen=True):
    """Supervisor -> coordinator: the process of a replica, its child, has ended."""

    KIND = 0x50
    LIMIT = Limit(4 * KIB)
    role: str
    index: Count
    process: ProcessId
    exit_code: int
    """The result of waitpid: an exit code, or minus the number of the signal that killed it."""


class Fail(Request[Ack], frozen=True):
    """Any role -> coordinator: the replica has failed; `error` is a sentence with the reason."""

    KIND = 0x4B
    LIMIT = Limit(64 * KIB)
    sender: Sender
    error: str
    exit_code: Count
    """2 if the user can correct it, 1 otherwise."""


class Recorded(Request[Ack], frozen=True):
    """Any role -> coordinator: a portion of its trace; Ack when that is in the run directory."""

    KIND = 0x54
    LIMIT = Limit(2 * MIB)
    sender: Sender
    portion: bytes
    """A `persia_cli.observe.recordings.TracePortion` as JSON."""


Call = Literal["set", "get", "add", "compare_set", "check", "delete"]
"""The call."""


class StoreValue(Message, frozen=True):
    """Coordinator -> NN worker: the value of a key of the ranks' store, or a number."""

    KIND = 0x53
    LIMIT = Limit(64 * KIB)
    value: bytes = b""
    number: int = 0
    """The sum after `add`; the number of keys that exist (`check`), or existed (`delete`)."""


class StoreCall(Request[StoreValue], frozen=True):
    """NN worker -> coordinator: a call of the store by which ranks find each other; `get` waits for its key."""

    KIND = 0x52
    LIMIT = Limit(64 * KIB)
    sender: Sender
    call: Call
    keys: tuple[str, ...]
    """One key; several only for `check`."""
    value: bytes = b""
    """The value to set."""
    expected: bytes = b""
    """The value that `compare_set` must find; empty if the key may also be absent."""
    amount: int = 0
    """The number to add."""

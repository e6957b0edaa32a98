"""Messages that are malformed or impossible are refused and counted; training continues to the same result."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import msgspec
import numpy as np
from msgspec.structs import replace

from persia_cli.control.position import EVAL, TRAIN
from persia_cli.observe.journal import read_journal
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.store.checkpoints.saved import SavedFile, encode_files
from persia_cli.version import __version__
from persia_cli.wire.frames import MAX_FRAMES, Frame, encode
from persia_cli.wire.job_messages import (
    Counters,
    Heartbeat,
    Hello,
    IntervalMetrics,
    Next,
    NextItem,
    ReplicaUsage,
    Report,
    Saved,
    ScoreCounts,
    ScoredSamples,
)
from persia_cli.wire.message import BatchId, ProcessId, Sender
from persia_cli.wire.messages import (
    PROTOCOL,
    Ack,
    GroupGradients,
    GroupKeys,
    LookUp,
    Pull,
    PushGradients,
    PutIds,
    PutSamples,
    Refused,
    Update,
    WaitCredit,
)
from tests.conftest import poll_for
from tests.support.jobs import losses, plan
from tests.support.small import STEPS, WORDS, counted, figures
from tests.support.stranger import Stranger, send_bytes
from tests.support.threads import ThreadJob

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
"""The first 64 bytes of ZMTP 3.1, RFC 37."""
SERVING = ("coordinator-0", "embedding-server-0", "embedding-worker-0", "nn-worker-0")


def nonsense(moments: random.Random) -> Iterator[list[Frame]]:
    """Frames that are no message; what is random is different each time."""
    yield [moments.randbytes(moments.randrange(200)) for _ in range(moments.randrange(1, 9))]
    yield [b""]
    yield [b"\xee", msgspec.msgpack.encode((1, []))]
    yield [b""] * (MAX_FRAMES + 100)
    batch = BatchId(TRAIN, 1, 0)
    kind, header, *raw = encode(1, PutIds(batch, 0, np.arange(4, dtype=np.uint64), np.arange(5, dtype=np.uint32)))
    yield [kind, header[: moments.randrange(len(header))], *raw]
    yield [kind, header, raw[0]]
    yield [kind, header, raw[0], bytes(raw[1])[:-1]]
    yield [kind, header, *raw, b"more"]
    for shapes in ([[1 << 29]] * 2, [[1 << 62], [1]], [[-1], [1]], [[1], None], [[1, 1], [1]], [["<u8", [1]], [1]]):
        yield [kind, msgspec.msgpack.encode((1, [batch], shapes, None)), b"", b""]
    yield [kind, b"\x91" * 5000, b"", b""]
    yield encode(1, Ack())


def bytes_of_no_peer(moments: random.Random) -> bytes:
    """Return possible input of a plain TCP connection: no ZMTP at all, some of it, or all of it and then nonsense."""
    return moments.choice(
        [
            moments.randbytes(500),
            b"GET / HTTP/1.1\r\n\r\n",
            GREETING[: moments.randrange(64)],
            GREETING + moments.randbytes(300),
            GREETING + b"\x02" + (1 << 62).to_bytes(8, "big") + b"endless",
        ]
    )


def test_nonsense_is_refused_and_counted_and_training_goes_on(undisturbed, tmp_path):
    moments = random.Random(0)
    sent = dict.fromkeys(SERVING, 0)
    with ExitStack() as open_ones, ThreadJob(plan(WORDS, tmp_path / "run")) as job:
        strangers = {name: open_ones.enter_context(Stranger(job.addresses[name], job.token)) for name in SERVING}
        while job.goes_on(0.02):
            for name, stranger in strangers.items():
                for frames in nonsense(moments):
                    stranger.send(frames)
                    sent[name] += 1
            # Some connections send something and hang up, some are left hanging for a while.
            with suppress(ConnectionError), ExitStack() as hanging:
                for address in job.addresses.values():
                    hanging.enter_context(closing(send_bytes(address, bytes_of_no_peer(moments))))
                job.goes_on(moments.uniform(0.0, 0.1))
        result = job.result()

    for name, number in sent.items():
        assert number > 100
        assert counted(result, name.removesuffix("-0"), "refused") > number / 2
    assert figures(result) == figures(undisturbed)


TABLE = np.zeros(1, np.uint16)
NO_KEYS = [GroupKeys(np.empty(0, np.uint64), np.empty(0, np.uint16))]


def key_of(server: int) -> np.ndarray:
    """A key that belongs to one of two servers."""
    return np.array([server << 63], np.uint64)


def ask_server(stranger: Stranger, now: int) -> None:
    batch, last = BatchId(TRAIN, now, 0), BatchId(TRAIN, STEPS - 1, 0)
    update = GroupGradients(key_of(0), TABLE, np.zeros((1, 16), np.uint8))
    stranger.is_refused("no rank 7", LookUp(BatchId(TRAIN, now, 7), True, (), NO_KEYS))
    stranger.is_refused("no step 300", LookUp(BatchId(TRAIN, STEPS, 0), True, (), NO_KEYS))
    stranger.is_refused(
        "expected arrays of 1 feature groups, received those of 2", LookUp(batch, True, (), NO_KEYS * 2)
    )
    stranger.is_refused("does not belong to this server", LookUp(batch, False, (), [GroupKeys(key_of(1), TABLE)]))
    stranger.is_refused("table number 9", LookUp(last, True, (), [GroupKeys(key_of(0), TABLE + 9)]))
    stranger.is_refused("has no updates", Update(BatchId(EVAL, 0, 0), 0, [update]))
    stranger.is_refused("(1, 12)", Update(last, 0, [update._replace(gradients=update.gradients[:, :12].copy())]))
    stranger.is_refused("does not belong to this server", Update(last, 0, [update._replace(keys=key_of(1))]))
    stranger.is_refused("does not accept Pull messages", Pull(batch))


def ask_worker(stranger: Stranger, now: int) -> None:
    ids, offsets = np.arange(64, dtype=np.uint64), np.arange(65, dtype=np.uint32)
    late = BatchId(TRAIN, STEPS - 1, 0)
    stranger.is_refused("no rank 1", PutIds(BatchId(TRAIN, now, 1), 0, ids, offsets))
    stranger.is_refused("no step", PutIds(BatchId(TRAIN, 2**62, 0), 0, ids, offsets))
    stranger.is_refused("there are 0 offsets, and 65 are needed", PutIds(late, 0, ids, offsets[:0]))
    stranger.is_refused("there are 33 offsets, and 65 are needed", PutIds(late, 0, ids, offsets[:33].copy()))
    stranger.is_refused("exceed the 63 ids", PutIds(late, 0, ids[:63].copy(), offsets))
    stranger.is_refused("offsets decrease", PutIds(late, 0, ids, offsets[::-1].copy()))
    stranger.is_refused("no rank 1", Pull(BatchId(TRAIN, now, 1)))
    stranger.is_refused("before its rows", PushGradients(late, 0, [np.zeros((1, 16), np.uint8)]))


def ask_rank(stranger: Stranger, now: int) -> None:
    dense, labels = np.zeros((32, 2), np.float32), np.zeros((32, 1), np.float32)
    good = PutSamples(BatchId(TRAIN, now, 0), 0.0, np.array([32.0]), dense, labels, None, None, None, None)
    for because, wrong in {
        "no rank 1": {"batch": BatchId(TRAIN, now, 1)},
        "without credit": {"batch": BatchId(TRAIN, STEPS - 1, 0)},
        "shapes (32, 1)": {"dense": dense[:, :1].copy()},
        "expected 32 samples": {"dense": dense[1:], "labels": labels[1:], "weights": np.ones(31, np.float32)},
        "arrived with query ids": {"query_ids": np.zeros(32, np.uint64)},
        "cannot add up to [nan]": {"weight_totals": np.array([np.nan])},
    }.items():
        stranger.is_refused(because, replace(good, **wrong))
    stranger.is_refused("no step 300", WaitCredit(TRAIN, STEPS))


def ask_coordinator(stranger: Stranger, now: int) -> None:
    server, rank, loader = (Sender(role, 0, 1) for role in ("embedding-server", "nn-worker", "data-loader"))
    interval = IntervalMetrics("train", 1, samples=1, steps=1, staleness={}, seconds=1.0, loss_sums=(0.0,))
    scores = ScoreHistogram(1).encode()
    hello = Hello(
        role="nn-worker", index=0, process=ProcessId(1), host="here", version=__version__, protocol=PROTOCOL, address=""
    )
    stranger.is_refused("already running", hello)
    stranger.is_refused("no nn-worker-5", replace(hello, index=5))
    stranger.is_refused("no role 'cook'", replace(hello, role="cook"))
    stranger.is_refused("install the same version", replace(hello, version="0.0.0"))
    stranger.is_refused("incarnation", Next(Sender("nn-worker", 0, 9), 0))
    stranger.is_refused("header of Next cannot be read", Next(rank, -1))
    stranger.is_refused("for replicas of the role data-loader", NextItem(rank, TRAIN))
    many = Counters(tables={"feature_0": {"rows": "many"}})
    stranger.is_refused("header of Heartbeat cannot be read", Heartbeat(server, "", 0.0, ReplicaUsage(1.0, -1)))
    stranger.is_refused("Expected `int`", Heartbeat(server, "", 0.0, ReplicaUsage(1.0, 1, counters=many)))
    outside = encode_files([SavedFile("rows", "../a", 1, "0" * 32)])
    stranger.is_refused("sent an invalid list of files", Saved(server, 1, outside))
    stranger.is_refused("for replicas of the role nn-worker", Report(loader, STEPS, interval, scores, None))
    stranger.is_refused("header of Report", Report(rank, STEPS, replace(interval, seconds=-1.0), scores, None))
    wrong = ScoreCounts(np.array([2, 2], np.uint64), np.ones(2), scores.sums)
    stranger.is_refused("are not valid", Report(rank, STEPS, interval, wrong, None))
    samples = ScoredSamples(np.zeros(1, np.uint64), *[np.zeros((1, 2), np.float32)] * 2, None)
    stranger.is_refused("of 2 tasks, and 1 are needed", Report(rank, STEPS, interval, scores, samples))
    stranger.is_refused("is still missing", Report(rank, 2**40, interval, scores, None))


def test_well_formed_messages_with_impossible_contents_are_refused(undisturbed, tmp_path):
    words = [*WORDS, "cluster.embedding_servers=2"]
    refused = {}
    with ThreadJob(plan(words, tmp_path / "run")) as job:

        def reached() -> int:
            return len(read_journal(tmp_path / "run" / "metrics.jsonl"))

        poll_for(lambda: reached() > 20 or job.errors, 60.0, "20 steps")
        # Held up like this, the worker has answered one batch whose gradients have not come.
        job.proxies["embedding-worker-0"].stall(replies=False)
        now = reached()
        for name, ask in {
            "embedding-server-0": ask_server,
            "embedding-worker-0": ask_worker,
            "nn-worker-0": ask_rank,
            "coordinator-0": ask_coordinator,
        }.items():
            with Stranger(job.addresses[name], job.token) as stranger:
                ask(stranger, now)
                refused[name] = stranger.refused
        with Stranger(job.addresses["embedding-worker-0"], job.token) as stranger:
            wrong = [np.zeros((1, 12), np.uint8)]

            def in_flight_is_refused() -> bool:
                answers = [stranger.ask(PushGradients(BatchId(TRAIN, step, 0), 0, wrong)) for step in range(STEPS)]
                reasons = [answer.reason for answer in answers if isinstance(answer, Refused)]
                return any("expected gradients of shapes" in reason for reason in reasons)

            poll_for(in_flight_is_refused, 20.0, "gradients of the batch in flight refused for their shape")
        job.proxies["embedding-worker-0"].resume()
        result = job.result()

    for name, number in refused.items():
        assert counted(result, name.removesuffix("-0"), "refused") >= number
    assert losses(result) == losses(undisturbed)

"""The store in which ranks meet behaves like torch's own."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
import torch.distributed as dist
from hypothesis import given, settings

from persia_cli.errors import WireError
from persia_cli.roles.coordinator.work import MAX_KEYS, RendezvousStore
from persia_cli.roles.nn_worker.rendezvous import RankStore
from persia_cli.wire.job_messages import StoreCall
from persia_cli.wire.message import Message, Sender
from persia_cli.wire.messages import Refused
from persia_cli.wire.server import Peer

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from([b"", b"x", b"7", b"\x00\xff"])
CALLS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("compare_set"), KEYS, VALUES, VALUES),
    st.tuples(st.just("check"), st.lists(KEYS, min_size=1)),
    st.tuples(st.just("wait"), st.lists(KEYS, min_size=1)),
    st.tuples(st.just("delete_key"), KEYS),
)


class Coordinator:
    """A coordinator's meeting, without the rest of it; refusals are answers, as over the wire."""

    def __init__(self) -> None:
        self.answers: dict[Peer, list[Message]] = {}
        self.meeting = RendezvousStore(self)  # type: ignore[arg-type]

    def find(self, sender: Sender, only: str) -> None:
        assert only == "nn-worker"

    def reply(self, peer: Peer, message: Message) -> None:
        self.answers.setdefault(peer, []).append(message)

    def call(self, number: int, message: StoreCall) -> list[Message]:
        """Answers to a call so far."""
        peer = Peer(b"rank", number)
        try:
            self.meeting.on_call(peer, message)
        except WireError as error:
            self.reply(peer, Refused(str(error)))
        return self.answers.get(peer, [])


class SessionOfARank:
    """A rank's session, whose coordinator answers at once, or never."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.sender = Sender("nn-worker", 0, 1)
        self._coordinator, self._number = coordinator, 0
        self._waiting: list[tuple[int, Any]] = []

    def ask_store(self, message: StoreCall, on_value: Any) -> None:
        self._number += 1
        for answer in self._coordinator.call(self._number, message):
            on_value(answer)


def store_of(coordinator: Coordinator, timeout_s: float = 0.01) -> RankStore:
    return store_by(SessionOfARank(coordinator), timeout_s)


def store_by(session: "SessionOfARank", timeout_s: float, check: Callable[[], None] = lambda: None) -> RankStore:
    return RankStore(session, lambda function: function(), check, timeout_s)  # type: ignore[arg-type]


def outcome(store: dist.Store, call: str, *arguments: Any) -> Any:
    try:
        result = getattr(store, call)(*arguments)
    except Exception:
        return "refused"
    return bytes(result) if isinstance(result, bytes | str) and call != "set" else result


@settings(max_examples=10)  # waits that end in vain take their time
@given(st.lists(CALLS, max_size=12))
def test_every_call_does_what_it_does_in_a_store_of_torch(calls: list[tuple[Any, ...]]) -> None:
    ours, theirs = store_of(Coordinator()), dist.HashStore()
    theirs.set_timeout(timedelta(milliseconds=10))
    for call, *arguments in calls:
        assert outcome(ours, call, *arguments) == outcome(theirs, call, *arguments), (call, arguments)


@given(st.lists(st.tuples(KEYS, st.integers(-5, 5)), max_size=12))
def test_sums_are_those_of_torch(amounts: list[tuple[str, int]]) -> None:
    ours, theirs = store_of(Coordinator()), dist.HashStore()
    for key, amount in amounts:
        assert ours.add(key, amount) == theirs.add(key, amount)
        assert ours.get(key) == theirs.get(key)


def call(name: str, *keys: str, **fields: Any) -> StoreCall:
    return StoreCall(Sender("nn-worker", 1, 1), name, keys, **fields)  # type: ignore[arg-type]


def test_invalid_requests_are_refused() -> None:
    coordinator = Coordinator()
    coordinator.call(1, call("set", "k", value=b"word"))
    for number, (message, reason) in enumerate(
        {
            call("add", "k", amount=1): "the key k of the ranks' store is no number",
            call("set", "a", "b"): "the call set of the ranks' store is for one key, not 2",
            call("check"): "is for one key, not 0",
        }.items(),
        start=2,
    ):
        [refused] = coordinator.call(number, message)
        assert reason in refused.reason
    for number in range(MAX_KEYS - 1):
        coordinator.meeting._values[f"{number}"] = b""
    [refused] = coordinator.call(9, call("set", "one too many"))
    assert "65536 keys" in refused.reason


def test_a_rank_does_not_wait_for_ever_nor_after_the_end() -> None:
    store = store_of(Coordinator())
    with pytest.raises(RuntimeError, match=r"no answer to get k within 0.01 s"):
        store.get("k")
    with pytest.raises(RuntimeError, match="within 0"):
        store.wait(["k"], timedelta(seconds=0))

    def ended() -> None:
        raise WireError("the job has ended")

    with pytest.raises(WireError, match="the job has ended"):
        store_by(SessionOfARank(Coordinator()), 60.0, ended).get("k")

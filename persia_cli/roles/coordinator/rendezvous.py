"""The store through which the ranks of torch find each other; the coordinator stores its values."""

from persia_cli.errors import WireError
from persia_cli.roles.coordinator.state import JobState
from persia_cli.wire.job_messages import StoreCall, StoreValue
from persia_cli.wire.server import Peer

MAX_KEYS = 65_536
"""Maximum number of keys of a job; a rank sets a few for each other rank."""


class RendezvousStore:
    """The values of the ranks' store, and the ranks that wait for one."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._values: dict[str, bytes] = {}
        self._waiting: list[tuple[Peer, str]] = []

    def on_call(self, peer: Peer, message: StoreCall) -> None:
        """Carry out the call of a rank; raise WireError for another sender."""
        self._state.find(message.sender, only="nn-worker")
        if not message.keys or (len(message.keys) > 1 and message.call != "check"):
            raise WireError(f"the call {message.call} of the ranks' store is for one key, not {len(message.keys)}")
        key = message.keys[0]
        if message.call == "get":
            self._waiting.append((peer, key))
            self._answer_waiting()
            return
        self._state.reply(peer, self._done(message, key))
        self._answer_waiting()

    def _done(self, message: StoreCall, key: str) -> StoreValue:
        values = self._values
        match message.call:
            case "set":
                self._set(key, message.value)
            case "add":
                number = _number(key, values.get(key, b"0")) + message.amount
                self._set(key, str(number).encode())
                return StoreValue(number=number)
            case "compare_set":
                found = values.get(key)
                if found == message.expected or (found is None and not message.expected):
                    self._set(key, message.value)
                return StoreValue(values.get(key, message.expected))
            case "check":
                return StoreValue(number=sum(each in values for each in message.keys))
            case "delete":
                return StoreValue(number=int(values.pop(key, None) is not None))
        return StoreValue()

    def _set(self, key: str, value: bytes) -> None:
        if len(self._values) >= MAX_KEYS and key not in self._values:
            raise WireError(f"the ranks' store has {MAX_KEYS} keys, its maximum")
        self._values[key] = value

    def _answer_waiting(self) -> None:
        """Answer the ranks whose key now exists."""
        left = []
        for peer, key in self._waiting:
            if key in self._values:
                self._state.reply(peer, StoreValue(self._values[key]))
            else:
                left.append((peer, key))
        self._waiting = left


def _number(key: str, value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise WireError(f"the key {key} of the ranks' store is no number") from None

"""Work is handed out: instructions to all, steps to data loaders, and the values by which ranks find each other."""

# Invariants:
#
# - No steps are assigned before the first instruction, nor between two phases.
# - A step is assigned to one loader, and again only when that has died before every rank had finished the step; each
#   training step is assigned. A repeated request gets the same steps.
# - After an evaluation, none of its steps is charged to a loader.
# - A replica gets each instruction of a phase in their order, and none of a phase that is over.

from collections import deque

from msgspec import structs

from persia_cli.control.portions import PlannedPortion
from persia_cli.control.position import EVAL, TRAIN, work_items
from persia_cli.errors import WireError
from persia_cli.roles.coordinator.state import JobState
from persia_cli.wire.job_messages import (
    DataPortion,
    Instruction,
    Item,
    Next,
    NextItem,
    PortionFile,
    StoreCall,
    StoreValue,
)
from persia_cli.wire.server import Peer

ITEM_STEPS = 16
"""Steps in one work item of a data loader."""
MAX_KEYS = 65_536
"""Maximum number of keys of the ranks' store; a rank sets a few for each other rank."""


class WorkQueue:
    """The unanswered requests for work."""

    def __init__(self, state: JobState) -> None:
        """Begin with all training steps of the job to assign."""
        self._state, job = state, state.job
        steps = job.steps if state.portions is None else job.first_step
        self._items = {TRAIN: work_items(job.first_step, steps, ITEM_STEPS), EVAL: work_items(0, 0, ITEM_STEPS)}
        self._portions: deque[tuple[int, int]] = deque()
        """The training steps of portions that are not assigned yet, in work items."""
        self._instructions: list[Instruction] = []
        """The instructions of this phase; a replica that takes part gets each after it has done the one before."""
        self._nexts: dict[str, tuple[Peer, int]] = {}
        self._takes: dict[tuple[str, int], tuple[Peer, NextItem]] = {}
        self._returned: dict[int, list[tuple[int, int]]] = {TRAIN: [], EVAL: []}
        """Steps that dead loaders had not finished."""
        self._unfinished: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Steps assigned to each loader and split, and not reported as finished."""
        self._given: dict[tuple[str, int], tuple[Peer, Item]] = {}
        """The last answer to each loader and split."""
        self._evaluated = 0, 0
        """The first step of the present evaluation, and that of training at which it happens."""

    def train(self, first: int, last: int) -> None:
        """Assign the training steps [first, last) of the next portion too."""
        self._portions.extend(work_items(first, last, ITEM_STEPS))
        self._deal()

    def evaluate(self, first: int, last: int) -> None:
        """Assign the evaluation steps [first, last) to loaders, from the next instruction on."""
        self._items[EVAL] = work_items(first, last, ITEM_STEPS)
        self._evaluated = first, self._state.step

    def end_evaluation(self) -> None:
        """Assign no further evaluation steps; all are evaluated, though loaders report steps only with the next."""
        self._items[EVAL] = work_items(0, 0, ITEM_STEPS)
        self._returned[EVAL].clear()
        self._unfinished = {key: steps for key, steps in self._unfinished.items() if key[1] == TRAIN}

    def end_training(self, step: int) -> None:
        """Assign no step of portions before this one again; loaders, who report it later, may have forgotten them."""
        if self._state.portions is None:
            return
        waiting = list(self._portions)
        for steps in (
            waiting,
            self._returned[TRAIN],
            *(self._unfinished[key] for key in self._unfinished if key[1] == TRAIN),
        ):
            steps[:] = [(max(first, step), last) for first, last in steps if last > step]
        self._portions = deque(waiting)

    def take_back(self, name: str) -> int:
        """Assign the unfinished steps of a dead data loader again; return their number."""
        steps = 0
        for split, returned in self._returned.items():
            items = self._unfinished.pop((name, split), [])
            returned += items
            returned.sort()
            steps += sum(last - first for first, last in items)
            self._takes.pop((name, split), None)
        self._deal()
        return steps

    def end_phase(self) -> None:
        """Give no instruction until the next phase begins: a new process must not repeat the finished phase."""
        self._instructions.clear()

    def instruct(self, instruction: Instruction) -> None:
        """Give the first instruction of a phase to all replicas that wait for one or will ask."""
        self._instructions.clear()
        self.change(instruction)

    def change(self, instruction: Instruction) -> None:
        """Give a further instruction of the same phase to all replicas that have the ones before."""
        self._instructions.append(instruction)
        for name in list(self._nexts):
            self._answer(name)
        self._deal()

    def on_next(self, peer: Peer, message: Next) -> None:
        """Register a replica's request for the instruction after number `after`."""
        name = self._state.find(message.sender).name
        self._nexts[name] = (peer, message.after)
        self._answer(name)

    def _answer(self, name: str) -> None:
        peer, after = self._nexts[name]
        for instruction in self._instructions:
            if after < instruction.number:
                del self._nexts[name]
                self._state.reply(peer, instruction)
                return

    def on_next_item(self, peer: Peer, message: NextItem) -> None:
        """Register a loader's request for steps of a split; a repeated request gets the same steps."""
        name = self._state.find(message.sender, only="data-loader").name
        requester, item = self._given.get((name, message.split), (None, None))
        if item is not None and requester == peer:
            # The server forgets old answers. A repeat must not get the next steps then, since no loader
            # would load the ones before.
            self._state.reply(peer, item)
            return
        unfinished = self._unfinished.get((name, message.split), [])
        self._unfinished[name, message.split] = [steps for steps in unfinished if steps[1] > message.finished]
        self._takes[name, message.split] = (peer, message)
        self._deal()

    def _deal(self) -> None:
        if not self._instructions:
            return
        for key, (peer, take) in list(self._takes.items()):
            returned = self._returned[take.split]
            steps = returned.pop(0) if returned else self._next_steps(take.split)
            if steps is not None:
                self._unfinished.setdefault(key, []).append(steps)
                item = self._item(take, *steps)
            elif take.split == TRAIN and self._state.portions is None:
                item = Item(first=0, last=0, end=True)
            else:
                continue
            del self._takes[key]
            self._given[key] = (peer, item)
            self._state.reply(peer, item)

    def _next_steps(self, split: int) -> tuple[int, int] | None:
        if split == TRAIN and self._portions:
            return self._portions.popleft()
        return next(self._items[split], None)

    def _item(self, take: NextItem, first: int, last: int) -> Item:
        """Return a work item, of data that grows with the portions that the loader needs and does not have."""
        item, portions = Item(first, last, end=False), self._state.portions
        if portions is None:
            return item
        begin, step = self._evaluated if take.split == EVAL else (first, first)
        portion = portions.of(step)
        assert portion is not None, "only steps of known portions are assigned"
        begin = portion.first_step if take.split == TRAIN else begin
        sent = [known for known in portions.from_number(portion.number) if known.number not in take.portions]
        return structs.replace(item, portion=portion.number, begin=begin, portions=tuple(map(_as_message, sent[:2])))


def _as_message(portion: PlannedPortion) -> DataPortion:
    return DataPortion(portion.number, portion.rows, tuple(PortionFile(*file) for file in portion.files))


class RendezvousStore:
    """The store through which the ranks of torch find each other: its values, and the ranks that wait for one."""

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
                present = values.get(key)
                if present == message.expected or (present is None and not message.expected):
                    self._set(key, message.value)
                return StoreValue(values.get(key, message.expected))
            case "check":
                return StoreValue(number=sum(key in values for key in message.keys))
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
